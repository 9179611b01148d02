// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which types may be read from and written to raw bytes?

use core::mem::{MaybeUninit, size_of};
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

/// Plain old data: any bit pattern is a value, no padding, no pointers.
///
/// # Safety
/// Implementors must hold to exactly that. The `mirror!` macro checks the
/// absence of padding at compile time.
pub unsafe trait Pod: Copy + 'static {
    /// A value of zero bytes: "nothing" in every struct of the ABI.
    fn zeroed() -> Self {
        // SAFETY: any bit pattern, hence also all zero, is a value of a Pod.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// The same on the heap, never on the stack on the way: per-CPU accounts
    /// are half a megabyte.
    fn zeroed_box() -> Box<Self> {
        const { assert!(size_of::<Self>() > 0) };
        let layout = Layout::new::<Self>();
        // SAFETY: the size is not 0 (asserted), and all-zero bytes are a value
        // of a Pod; Box frees with the same layout and allocator.
        unsafe {
            let memory = alloc_zeroed(layout).cast::<Self>();
            if memory.is_null() {
                handle_alloc_error(layout);
            }
            Box::from_raw(memory)
        }
    }

    /// `count` zeroed values on the heap. The memory comes from the system
    /// already zero, so what is never written costs nothing.
    fn zeroed_slice(count: usize) -> Box<[Self]> {
        const { assert!(size_of::<Self>() > 0) };
        if count == 0 {
            return Box::new([]);
        }
        let layout = Layout::array::<Self>(count).expect("fits the address space");
        // SAFETY: the size is not 0, all-zero bytes are values of a Pod, and
        // Box frees a slice of this length with the same layout.
        unsafe {
            let memory = alloc_zeroed(layout).cast::<Self>();
            if memory.is_null() {
                handle_alloc_error(layout);
            }
            Box::from_raw(core::ptr::slice_from_raw_parts_mut(memory, count))
        }
    }

    fn as_bytes(&self) -> &[u8] {
        // SAFETY: a Pod has no padding, so all its bytes are initialised; u8
        // has no alignment.
        unsafe { core::slice::from_raw_parts((self as *const Self).cast(), size_of::<Self>()) }
    }

    fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and any byte written leaves a valid value.
        unsafe { core::slice::from_raw_parts_mut((self as *mut Self).cast(), size_of::<Self>()) }
    }

    /// Copies a value out of the front of `bytes`; None if there are too few.
    fn read_from(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < size_of::<Self>() {
            return None;
        }
        // SAFETY: enough bytes are there, read_unaligned asks for no
        // alignment, and any bytes make a valid Pod.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

macro_rules! pod_number {
    ($($t:ty)*) => { $(
        // SAFETY: numbers have no padding and no invalid values.
        unsafe impl Pod for $t {}
    )* };
}
pod_number!(u8 i8 u16 i16 u32 i32 u64 i64);

// SAFETY: an array of padding-free values has no padding either.
unsafe impl<T: Pod, const N: usize> Pod for [T; N] {}

/// Declares a struct as C lays it out: `name = size, alignment { field: type = offset }`,
/// checked at compile time.
#[doc(hidden)]
#[macro_export]
macro_rules! laid_out {
    (
        $(#[$doc:meta])*
        $name:ident = $size:literal, $align:literal {
            $( $(#[$fdoc:meta])* $field:ident : $type:ty = $offset:literal ),+ $(,)?
        }
    ) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name { $( $(#[$fdoc])* pub $field: $type ),+ }

        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size);
            assert!(core::mem::align_of::<$name>() == $align);
            $( assert!(core::mem::offset_of!($name, $field) == $offset); )+
        };
    };
}

/// The same of plain old data, which it is shown to be.
#[doc(hidden)]
#[macro_export]
macro_rules! mirror {
    (
        $(#[$doc:meta])*
        $name:ident = $size:literal, $align:literal {
            $( $(#[$fdoc:meta])* $field:ident : $type:ty = $offset:literal ),+ $(,)?
        }
    ) => {
        $crate::laid_out! {
            $(#[$doc])*
            $name = $size, $align { $( $(#[$fdoc])* $field: $type = $offset ),+ }
        }

        // SAFETY: all fields are Pod (checked by `is_pod` below) and their
        // sizes add up to the size of the struct, so there is no padding.
        unsafe impl $crate::Pod for $name {}

        const _: () = {
            const fn is_pod<T: $crate::Pod>() {}
            $( is_pod::<$type>(); )+
            assert!(0 $( + core::mem::size_of::<$type>() )+ == $size, "padding");
        };

        impl Default for $name {
            fn default() -> Self { <Self as $crate::Pod>::zeroed() }
        }
    };
}
