// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does one program hang on many functions, where each needs a copy of
//! its own (fentry, fexit, tracepoints)?
//!
//! libbpf loads the first copy; its instructions, as they were given to the
//! kernel, are loaded again with another target and another number in place
//! of the constant that bpf/trace.bpf.c calls NUMBER.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libbpf_rs::libbpf_sys as sys;

/// The two halves of NUMBER in bpf/trace.bpf.c.
const NUMBER_LOW: i32 = 0xf00d_0eb0_u32 as i32;
const NUMBER_HIGH: i32 = 0x5eb0;

/// What a program may hang on, by its number in the kernel's type information.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    pub btf_id: u32,
    /// 0: the kernel itself; else the descriptor of a module's types.
    pub btf_fd: RawFd,
}

/// Instructions of a loaded program.
pub struct Template {
    instructions: Vec<sys::bpf_insn>,
    /// What the verifier wants to know of callbacks; of the object's own types.
    functions: Vec<sys::bpf_func_info>,
    btf_fd: RawFd,
    attach_type: sys::bpf_attach_type,
}

impl Template {
    /// # Safety
    /// `program` is a loaded program of `object`, which outlives the template.
    pub unsafe fn of(
        object: *mut sys::bpf_object,
        program: *mut sys::bpf_program,
        attach_type: sys::bpf_attach_type,
    ) -> Template {
        // SAFETY: libbpf hands out its own arrays, valid as long as the object;
        // they are copied at once.
        unsafe {
            let count = sys::bpf_program__insn_cnt(program) as usize;
            let instructions =
                std::slice::from_raw_parts(sys::bpf_program__insns(program), count).to_vec();
            let count = sys::bpf_program__func_info_cnt(program) as usize;
            let functions = match sys::bpf_program__func_info(program) {
                info if info.is_null() || count == 0 => vec![],
                info => std::slice::from_raw_parts(info, count).to_vec(),
            };
            Template {
                instructions,
                functions,
                btf_fd: sys::bpf_object__btf_fd(object),
                attach_type,
            }
        }
    }

    /// Loads a copy for one target and attaches it. Dropping both descriptors
    /// detaches it.
    pub fn attach(&self, target: Target, number: u32) -> io::Result<[OwnedFd; 2]> {
        let mut instructions = self.instructions.clone();
        let mut found = 0;
        for i in 1..instructions.len() {
            if instructions[i - 1].imm == NUMBER_LOW && instructions[i].imm == NUMBER_HIGH {
                instructions[i - 1].imm = number as i32;
                instructions[i].imm = 0;
                found += 1;
            }
        }
        if found == 0 {
            return Err(io::Error::other(
                "the program has no place for the function's number",
            ));
        }
        let mut options = sys::bpf_prog_load_opts {
            sz: size_of::<sys::bpf_prog_load_opts>() as sys::size_t,
            expected_attach_type: self.attach_type,
            attach_btf_id: target.btf_id,
            attach_btf_obj_fd: target.btf_fd as u32,
            prog_btf_fd: self.btf_fd.max(0) as u32,
            func_info: self.functions.as_ptr().cast(),
            func_info_cnt: self.functions.len() as u32,
            func_info_rec_size: size_of::<sys::bpf_func_info>() as u32,
            ..Default::default()
        };
        // SAFETY: instructions, name, licence and options live through the
        // call; the descriptors it returns are owned at once.
        unsafe {
            let program = sys::bpf_prog_load(
                sys::BPF_PROG_TYPE_TRACING,
                c"debox_trace".as_ptr(),
                c"Dual BSD/GPL".as_ptr(),
                instructions.as_ptr(),
                instructions.len() as sys::size_t,
                &mut options,
            );
            if program < 0 {
                return Err(io::Error::from_raw_os_error(-program));
            }
            let program = OwnedFd::from_raw_fd(program);
            let link = sys::bpf_raw_tracepoint_open(std::ptr::null(), program.as_raw_fd());
            if link < 0 {
                return Err(io::Error::from_raw_os_error(-link));
            }
            Ok([program, OwnedFd::from_raw_fd(link)])
        }
    }
}

/// The kernel's type information, and that of its modules.
pub struct Types {
    kernel: *mut sys::btf,
    modules: Vec<(String, *mut sys::btf, OwnedFd)>,
}

impl Types {
    pub fn load(modules: &[String]) -> io::Result<Types> {
        // SAFETY: plain calls into libbpf; every pointer it returns is freed
        // in drop, modules before the kernel's that they are based on.
        unsafe {
            let kernel = sys::btf__load_vmlinux_btf();
            if kernel.is_null() {
                return Err(io::Error::last_os_error());
            }
            let mut types = Types {
                kernel,
                modules: vec![],
            };
            let mut id = 0;
            // Needs CAP_SYS_ADMIN; without it modules' functions stay out of reach.
            while !modules.is_empty() && sys::bpf_btf_get_next_id(id, &mut id) == 0 {
                let fd = sys::bpf_btf_get_fd_by_id(id);
                if fd < 0 {
                    continue;
                }
                let fd = OwnedFd::from_raw_fd(fd);
                let mut name = [0u8; 64];
                let mut info: sys::bpf_btf_info = MaybeUninit::zeroed().assume_init();
                info.name = name.as_mut_ptr() as u64;
                info.name_len = name.len() as u32;
                let mut size = size_of::<sys::bpf_btf_info>() as u32;
                if sys::bpf_btf_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut size) != 0 {
                    continue;
                }
                let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
                let name = String::from_utf8_lossy(&name[..end]).into_owned();
                if info.kernel_btf == 0 || !modules.contains(&name) {
                    continue;
                }
                let Ok(c_name) = CString::new(name.clone()) else {
                    continue;
                };
                let btf = sys::btf__load_module_btf(c_name.as_ptr(), kernel);
                if !btf.is_null() {
                    types.modules.push((name, btf, fd));
                }
            }
            Ok(types)
        }
    }

    /// Where `name` of that kind (BTF_KIND_*) is.
    fn find(&self, name: &str, module: Option<&str>, kind: u32) -> Option<Target> {
        let c_name = CString::new(name).ok()?;
        let (btf, fd) = match module {
            None => (self.kernel, 0),
            Some(module) => {
                let (_, btf, fd) = self.modules.iter().find(|(n, _, _)| n == module)?;
                (*btf, fd.as_raw_fd())
            }
        };
        // SAFETY: btf is live until drop, the name ends with 0.
        let id = unsafe { sys::btf__find_by_name_kind(btf, c_name.as_ptr(), kind) };
        (id > 0).then_some(Target {
            btf_id: id as u32,
            btf_fd: fd,
        })
    }

    pub fn function(&self, name: &str, module: Option<&str>) -> Option<Target> {
        self.find(name, module, 12 /* BTF_KIND_FUNC */)
    }

    /// A tracepoint: the typedef that the kernel keeps for it.
    pub fn tracepoint(&self, name: &str, module: Option<&str>) -> Option<Target> {
        self.find(
            &format!("btf_trace_{name}"),
            module,
            8, /* BTF_KIND_TYPEDEF */
        )
    }

    /// Names of all tracepoints: (name, module).
    pub fn tracepoints(&self) -> Vec<(String, Option<String>)> {
        let mut out = vec![];
        // SAFETY: ids below the count are valid in a live btf; names are
        // strings that live as long.
        unsafe {
            let base = sys::btf__type_cnt(self.kernel);
            let all = std::iter::once((None, self.kernel, 1)).chain(
                self.modules
                    .iter()
                    .map(|(n, btf, _)| (Some(n.clone()), *btf, base)),
            );
            for (module, btf, first) in all {
                for id in first..sys::btf__type_cnt(btf) {
                    let kind = sys::btf__type_by_id(btf, id);
                    if kind.is_null() || ((*kind).info >> 24) & 0x1f != 8 {
                        continue;
                    }
                    let name = sys::btf__name_by_offset(btf, (*kind).name_off);
                    if name.is_null() {
                        continue;
                    }
                    let name = std::ffi::CStr::from_ptr(name).to_string_lossy();
                    if let Some(name) = name.strip_prefix("btf_trace_") {
                        out.push((name.to_owned(), module.clone()));
                    }
                }
            }
        }
        out
    }
}

impl Drop for Types {
    fn drop(&mut self) {
        // SAFETY: made in load, freed once, modules first.
        unsafe {
            for (_, btf, _) in &self.modules {
                sys::btf__free(*btf);
            }
            sys::btf__free(self.kernel);
        }
    }
}
