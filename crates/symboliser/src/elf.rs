// SPDX-License-Identifier: MIT OR Apache-2.0
//! Is a file that was handed in an ELF file?

pub(crate) type Elf = object::File<'static, &'static [u8]>;

pub(crate) fn parse(bytes: &'static [u8]) -> Result<Elf, String> {
    if !bytes.starts_with(b"\x7fELF") {
        return Err("it is not an ELF file".into());
    }
    object::File::parse(bytes).map_err(|error| format!("it is a damaged ELF file: {error}"))
}
