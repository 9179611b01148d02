// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does an HTTP answer end, and what does it say?
//!
//! Bytes come in pieces of any size. Lengths may be told, in chunks, or be known only when the
//! server closes (RFC 9112, 6.3).

use memchr::memmem;

/// A longer head is none.
const HEAD_BYTES_MOST: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// The head is not whole yet.
    Head,
    /// So many bytes are to come.
    Told(u64),
    /// In a line with a chunk's size: the size so far.
    ChunkSize(u64),
    /// Past the digits of that line.
    ChunkExtension(u64),
    Chunk(u64),
    /// So many bytes of the line's end behind a chunk.
    ChunkEnd(u8),
    /// Behind the last chunk: so many bytes in this line.
    Trailer(usize),
    UntilClose,
    Whole,
}

#[derive(Debug)]
pub struct Answer {
    head: Vec<u8>,
    state: Body,
    status: u16,
    told: Option<u64>,
    body_bytes: u64,
    kept: bool,
}

/// What came is no HTTP answer.
#[derive(Debug, PartialEq, Eq)]
pub struct NotHttp;

impl Default for Answer {
    fn default() -> Self {
        Self {
            head: Vec::new(),
            state: Body::Head,
            status: 0,
            told: None,
            body_bytes: 0,
            kept: false,
        }
    }
}

impl Answer {
    pub fn clear(&mut self) {
        self.head.clear();
        self.state = Body::Head;
        self.status = 0;
        self.told = None;
        self.body_bytes = 0;
        self.kept = false;
    }

    pub fn status(&self) -> u16 {
        self.status
    }

    /// What `Content-Length` said.
    pub fn told_bytes(&self) -> Option<u64> {
        self.told
    }

    /// That have come.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// Whether the server takes another request over this connection.
    pub fn kept(&self) -> bool {
        self.kept
    }

    pub fn is_whole(&self) -> bool {
        self.state == Body::Whole
    }

    /// Takes the bytes that belong to the answer, and says how many these are: all of them as
    /// long as it is not whole. `body` is called with each piece of the body and its offset.
    pub fn take(
        &mut self,
        bytes: &[u8],
        body: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<usize, NotHttp> {
        let mut at = 0;
        while at < bytes.len() && !self.is_whole() {
            at += self.take_some(&bytes[at..], body)?;
        }
        Ok(at)
    }

    /// The server closed; whether that makes the answer whole.
    pub fn ends_with_close(&mut self) -> bool {
        if self.state == Body::UntilClose {
            self.state = Body::Whole;
        }
        self.is_whole()
    }

    fn take_some(
        &mut self,
        bytes: &[u8],
        body: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<usize, NotHttp> {
        let first = bytes[0];
        let mut piece = |this: &mut Self, most: u64| {
            let n = bytes.len().min(usize::try_from(most).unwrap_or(usize::MAX));
            body(this.body_bytes, &bytes[..n]);
            this.body_bytes += n as u64;
            n
        };
        match self.state {
            Body::Head => return self.take_head(bytes),
            Body::Told(left) => {
                let n = piece(self, left);
                self.state = match left - n as u64 {
                    0 => Body::Whole,
                    left => Body::Told(left),
                };
                return Ok(n);
            }
            Body::Chunk(left) => {
                let n = piece(self, left);
                self.state = match left - n as u64 {
                    0 => Body::ChunkEnd(2),
                    left => Body::Chunk(left),
                };
                return Ok(n);
            }
            Body::UntilClose => return Ok(piece(self, u64::MAX)),
            Body::ChunkSize(size) => {
                self.state = match (char::from(first).to_digit(16), first) {
                    (Some(_), _) if size >> 48 != 0 => return Err(NotHttp),
                    (Some(digit), _) => Body::ChunkSize(size << 4 | u64::from(digit)),
                    (None, b'\n') => Self::chunk(size),
                    (None, b'\r' | b';' | b' ' | b'\t') => Body::ChunkExtension(size),
                    _ => return Err(NotHttp),
                };
            }
            Body::ChunkExtension(size) => {
                if first == b'\n' {
                    self.state = Self::chunk(size);
                }
            }
            Body::ChunkEnd(left) => {
                if first != if left == 2 { b'\r' } else { b'\n' } {
                    return Err(NotHttp);
                }
                self.state = match left {
                    2 => Body::ChunkEnd(1),
                    _ => Body::ChunkSize(0),
                };
            }
            Body::Trailer(line) => {
                self.state = match (first, line) {
                    (b'\n', 0) => Body::Whole,
                    (b'\n', _) => Body::Trailer(0),
                    (b'\r', _) => Body::Trailer(line),
                    _ => Body::Trailer(line + 1),
                };
            }
            Body::Whole => unreachable!("asked by take"),
        }
        Ok(1)
    }

    fn chunk(size: u64) -> Body {
        match size {
            0 => Body::Trailer(0),
            size => Body::Chunk(size),
        }
    }

    fn take_head(&mut self, bytes: &[u8]) -> Result<usize, NotHttp> {
        let before = self.head.len();
        self.head.extend_from_slice(bytes);
        // The four bytes of its end may have come in two pieces.
        let from = before.saturating_sub(3);
        let Some(found) = memmem::find(&self.head[from..], b"\r\n\r\n") else {
            let begin = &self.head[..self.head.len().min(5)];
            return match b"HTTP/".starts_with(begin) && self.head.len() <= HEAD_BYTES_MOST {
                true => Ok(bytes.len()),
                false => Err(NotHttp),
            };
        };
        let end = from + found + 4;
        self.head.truncate(end);
        self.read_head()?;
        Ok(end - before)
    }

    fn read_head(&mut self) -> Result<(), NotHttp> {
        let mut lines = self.head.split(|byte| *byte == b'\n');
        let status_line = lines.next().unwrap_or_default();
        let rest = status_line.strip_prefix(b"HTTP/1.").ok_or(NotHttp)?;
        let [minor, b' ', a, b, c, ..] = rest else {
            return Err(NotHttp);
        };
        let digits = [a, b, c];
        if !digits.iter().all(|digit| digit.is_ascii_digit()) {
            return Err(NotHttp);
        }
        self.status = digits.iter().fold(0, |n, d| n * 10 + u16::from(**d - b'0'));
        self.kept = *minor != b'0';
        let mut chunked = false;
        for line in lines {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else {
                continue;
            };
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            if name.eq_ignore_ascii_case(b"content-length") {
                let text = std::str::from_utf8(value).map_err(|_| NotHttp)?;
                self.told = Some(text.parse().map_err(|_| NotHttp)?);
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                chunked = value.eq_ignore_ascii_case(b"chunked");
            } else if name.eq_ignore_ascii_case(b"connection") {
                self.kept = match value.to_ascii_lowercase().as_slice() {
                    b"close" => false,
                    b"keep-alive" => true,
                    _ => self.kept,
                };
            }
        }
        self.state = match (self.status, self.told) {
            // Something comes before the answer.
            (100..200, _) => {
                self.clear();
                return Ok(());
            }
            (204 | 304, _) => Body::Whole,
            _ if chunked => Body::ChunkSize(0),
            (_, Some(0)) => Body::Whole,
            (_, Some(told)) => Body::Told(told),
            (_, None) => {
                self.kept = false;
                Body::UntilClose
            }
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In pieces of so many bytes; the body, and what is left over.
    fn taken(text: &[u8], piece: usize) -> Result<(Answer, Vec<u8>, usize), NotHttp> {
        let mut answer = Answer::default();
        let mut body = Vec::new();
        let mut used = 0;
        for part in text.chunks(piece) {
            let n = answer.take(part, &mut |at, bytes| {
                assert_eq!(at, body.len() as u64);
                body.extend_from_slice(bytes);
            })?;
            used += n;
            if n < part.len() {
                break;
            }
        }
        Ok((answer, body, text.len() - used))
    }

    #[test]
    fn an_answer_ends_where_its_length_says_however_it_is_cut() {
        let text = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-length:  5\r\n\r\nhelloHTTP";
        for piece in 1..text.len() {
            let (answer, body, _) = taken(text, piece).unwrap();
            assert!(answer.is_whole() && answer.kept(), "{piece}");
            assert_eq!((answer.status(), answer.told_bytes()), (200, Some(5)));
            assert_eq!(body, b"hello");
        }
        assert_eq!(taken(text, text.len()).unwrap().2, 4);
    }

    #[test]
    fn chunks_are_put_together() {
        let text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
            3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nT: 1\r\n\r\nX";
        for piece in 1..=text.len() {
            let (answer, body, _) = taken(text, piece).unwrap();
            assert!(answer.is_whole() && !answer.kept(), "{piece}");
            assert_eq!(body, b"abc0123456789");
        }
        assert_eq!(taken(text, text.len()).unwrap().2, 1);
        let wrong = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n";
        assert_eq!(taken(wrong, 7).unwrap_err(), NotHttp);
    }

    #[test]
    fn without_a_length_the_close_ends_it() {
        let (mut answer, body, _) = taken(b"HTTP/1.0 200 OK\r\n\r\nabc", 4).unwrap();
        assert_eq!(body, b"abc");
        assert!(!answer.is_whole() && !answer.kept());
        assert!(answer.ends_with_close());
        let told = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc";
        assert!(!taken(told, 64).unwrap().0.ends_with_close());
    }

    #[test]
    fn a_head_without_a_body_is_whole_and_an_early_one_is_passed_over() {
        let (answer, ..) = taken(b"HTTP/1.1 304 Not Modified\r\n\r\n", 9).unwrap();
        assert!(answer.is_whole() && answer.kept());
        let text = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(taken(text, 5).unwrap().0.status(), 500);
    }

    #[test]
    fn what_is_no_http_is_told() {
        for text in [
            &b"SSH-2.0-x\r\n"[..],
            b"HTTP/2 200\r\n\r\n",
            b"HTTP/1.1 2x0 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        ] {
            assert_eq!(taken(text, 3).unwrap_err(), NotHttp);
        }
        let endless = [&b"HTTP/1.1 200 OK\r\n"[..], &[b'x'; 70_000]].concat();
        assert_eq!(taken(&endless, 1000).unwrap_err(), NotHttp);
    }
}
