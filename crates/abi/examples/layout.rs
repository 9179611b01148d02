// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does every field of the shared structs lie, according to Rust?
//!
//! Prints `struct field offset size`, one line a field, and `struct - size
//! align` for each struct; `tests/abi` compares it with what C says.

fn main() {
    for layout in debox_abi::LAYOUTS {
        println!("{} - {} {}", layout.name, layout.size, layout.align);
        for field in layout.fields {
            // `type` is a keyword in Rust, so the mirror calls it `kind`.
            let name = if field.name == "kind" {
                "type"
            } else {
                field.name
            };
            println!("{} {} {} {}", layout.name, name, field.offset, field.size);
        }
    }
}
