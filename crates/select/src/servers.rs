// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a web server started for a measurement, with and without the library?

use crate::serve::Backend;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The plain server of this crate.
    Plain(Backend),
    /// lighttpd with this event handler.
    Lighttpd(&'static str),
    /// haproxy with these options, in front of nothing: it answers itself.
    Haproxy(&'static [&'static str]),
    Webfs,
    Darkhttpd,
}

pub struct Server {
    child: Child,
    pub address: SocketAddrV4,
    // Configuration and pages live as long as the server.
    _directory: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It is our own child and not waited for yet.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub const PAGES: [usize; 2] = [1259, 8192];

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}

pub fn installed(program: Program) -> bool {
    let name = match program {
        Program::Plain(_) => return true,
        Program::Lighttpd(_) => "lighttpd",
        Program::Haproxy(_) => "haproxy",
        Program::Webfs => "webfsd",
        Program::Darkhttpd => "darkhttpd",
    };
    executable(name).is_some()
}

fn executable(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|d| d.join(name))
        .find(|p| p.is_file())
}

pub fn pin(pid: i32, cpu: usize) {
    // SAFETY: the set is a local of its size. Where the CPU does not exist the
    // process stays where it is.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(pid, size_of_val(&set), &set);
    }
}

/// Before all ordinary processes.
pub fn prefer(pid: i32) -> io::Result<()> {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: reads a local.
    if unsafe { libc::sched_setscheduler(pid, libc::SCHED_RR, &first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Starts a server on CPU 0. `library`: preloaded with these options.
pub fn start(
    program: Program,
    library: Option<(&Path, &str)>,
    connections: usize,
) -> io::Result<Server> {
    let directory = tempfile::tempdir()?;
    let root = directory.path();
    std::fs::set_permissions(root, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    for size in PAGES {
        std::fs::write(root.join(size.to_string()), vec![b'x'; size])?;
    }
    let port = free_port()?;
    let missing = |name: &str| io::Error::other(format!("{name} is not installed"));
    let mut command = match program {
        Program::Plain(backend) => {
            let mut c = Command::new(std::env::current_exe()?);
            let name = match backend {
                Backend::Select => "select",
                Backend::Poll => "poll",
                Backend::Epoll => "epoll",
            };
            c.args(["bench", "serve", name, "--port", &port.to_string()]);
            c
        }
        Program::Lighttpd(handler) => {
            let config = root.join("lighttpd.conf");
            std::fs::write(
                &config,
                format!(
                    "server.document-root = \"{root}\"\nserver.port = {port}\n\
                     server.bind = \"127.0.0.1\"\nserver.event-handler = \"{handler}\"\n\
                     server.max-fds = {fds}\nserver.max-connections = {most}\n\
                     server.max-keep-alive-requests = 65535\n\
                     server.max-keep-alive-idle = 3600\nserver.max-read-idle = 3600\n\
                     server.max-write-idle = 3600\nserver.listen-backlog = 1024\n\
                     server.feature-flags = ( \"server.graceful-shutdown-timeout\" => 1 )\n",
                    root = root.display(),
                    most = connections.min(10_000),
                    fds = (2 * connections).min(20_000),
                ),
            )?;
            let mut c = Command::new(executable("lighttpd").ok_or_else(|| missing("lighttpd"))?);
            c.arg("-D").arg("-f").arg(config);
            c
        }
        Program::Haproxy(options) => {
            let config = root.join("haproxy.cfg");
            std::fs::write(
                &config,
                format!(
                    "global\n  maxconn {connections}\n  nbthread 1\n\
                     defaults\n  mode http\n  timeout client 3600s\n  timeout http-request 3600s\n\
                     timeout http-keep-alive 3600s\n  timeout connect 5s\n  timeout server 5s\n\
                     frontend f\n  bind 127.0.0.1:{port}\n\
                     {}",
                    PAGES
                        .map(|size| format!(
                            "  http-request return status 200 content-type text/plain file {}/{size} if {{ path /{size} }}\n",
                            root.display()
                        ))
                        .concat(),
                ),
            )?;
            let mut c = Command::new(executable("haproxy").ok_or_else(|| missing("haproxy"))?);
            c.args(options).arg("-db").arg("-q").arg("-f").arg(config);
            c
        }
        Program::Webfs => {
            let mut c = Command::new(executable("webfsd").ok_or_else(|| missing("webfsd"))?);
            c.arg("-F")
                .arg("-4")
                .args(["-i", "127.0.0.1", "-t", "3600"]);
            // With more than nine tenths of this open it keeps none alive.
            let most = 2 * connections;
            c.args(["-p", &port.to_string(), "-c", &most.to_string()]);
            c.arg("-r").arg(root);
            c
        }
        Program::Darkhttpd => {
            let mut c = Command::new(executable("darkhttpd").ok_or_else(|| missing("darkhttpd"))?);
            // Idle connections stay.
            c.arg(root)
                .args(["--addr", "127.0.0.1", "--timeout", "0", "--port"])
                .arg(port.to_string());
            c
        }
    };
    if let Some((library, options)) = library {
        command
            .env("LD_PRELOAD", library)
            .env("DEBOX_SELECT", options);
    } else {
        command.env_remove("LD_PRELOAD").env_remove("DEBOX_SELECT");
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn()?;
    pin(child.id() as i32, 0);
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    let begin = Instant::now();
    loop {
        if TcpStream::connect(address).is_ok() {
            break;
        }
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!(
                "{program:?} ended at once: {status}"
            )));
        }
        if begin.elapsed() > Duration::from_secs(20) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(io::Error::other(format!("{program:?} does not listen")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(Server {
        child,
        address,
        _directory: directory,
    })
}

impl Server {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// CPU time of all its threads so far, in nanoseconds.
    pub fn cpu_ns(&self) -> io::Result<u64> {
        // SAFETY: fills locals.
        unsafe {
            let mut clock = 0;
            let error = libc::clock_getcpuclockid(self.pid(), &mut clock);
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let mut ts: libc::timespec = std::mem::zeroed();
            if libc::clock_gettime(clock, &mut ts) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64)
        }
    }

    /// How many descriptors it has open.
    pub fn descriptors(&self) -> io::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count())
    }

    pub fn stop(&mut self) -> io::Result<std::process::ExitStatus> {
        // SAFETY: our own child, not waited for.
        unsafe { libc::kill(self.pid(), libc::SIGTERM) };
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if begin.elapsed() > Duration::from_secs(5) {
                self.child.kill()?;
                return self.child.wait();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Lets this process, and what it starts, have so many descriptors; how many
/// it may have.
pub fn descriptors_allow(wanted: usize) -> usize {
    // SAFETY: reads and writes locals.
    unsafe {
        let mut limit: libc::rlimit64 = std::mem::zeroed();
        libc::getrlimit64(libc::RLIMIT_NOFILE, &mut limit);
        let mut raised = limit;
        raised.rlim_cur = limit.rlim_max.max(wanted as u64);
        raised.rlim_max = raised.rlim_cur;
        if (limit.rlim_cur as usize) < wanted
            && libc::setrlimit64(libc::RLIMIT_NOFILE, &raised) != 0
        {
            raised.rlim_cur = limit.rlim_max;
            raised.rlim_max = limit.rlim_max;
            libc::setrlimit64(libc::RLIMIT_NOFILE, &raised);
        }
        libc::getrlimit64(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur as usize
    }
}
