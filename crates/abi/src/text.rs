// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does text get in and out of the fixed char arrays?

/// The text up to the first NUL. Everything from the first byte on that is no
/// UTF-8 is left out: it is text of ours, or a path. Names of programs: [`name_get`].
pub fn text_get(field: &[u8]) -> &str {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    let field = &field[..end];
    match core::str::from_utf8(field) {
        Ok(text) => text,
        Err(e) => core::str::from_utf8(&field[..e.valid_up_to()]).unwrap_or(""),
    }
}

/// A name that a foreign program gave itself, up to the first NUL: it may hold any bytes, and may have
/// been cut in the midst of a character; what is no UTF-8 is marked, as everywhere.
pub fn name_get(field: &[u8]) -> std::borrow::Cow<'_, str> {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end])
}

/// Stores `text` NUL-terminated, cut at a character boundary when too long.
pub fn text_put(field: &mut [u8], text: &str) {
    field.fill(0);
    let mut len = text.len().min(field.len().saturating_sub(1));
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
}
