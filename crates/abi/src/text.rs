// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does text get in and out of the fixed char arrays?

/// The text up to the first NUL. Bytes that are not UTF-8 come from a foreign
/// program (a comm, say): everything from the first such byte on is left out.
pub fn text_get(field: &[u8]) -> &str {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    let field = &field[..end];
    match core::str::from_utf8(field) {
        Ok(text) => text,
        Err(e) => core::str::from_utf8(&field[..e.valid_up_to()]).unwrap_or(""),
    }
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
