// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does an object lie that a skeleton borrows for as long as both live?
//!
//! A struct cannot hold a value and a borrow of it. A `Box` beside the borrow
//! will not do: a box claims to be the only way to its content each time that it
//! is moved, which ends the borrow (Stacked Borrows). So it is held by a raw
//! pointer, which claims nothing, until it is freed.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Room for one value; whoever fills it drops the value.
pub(crate) struct Place<T>(NonNull<MaybeUninit<T>>);

// SAFETY: it owns its memory as a box does, and gives no access to it but
// through `lend`, whose borrow is as sendable as T makes it.
unsafe impl<T: Send> Send for Place<T> {}

impl<T> Place<T> {
    pub fn new() -> Self {
        Self(NonNull::from(Box::leak(Box::new(MaybeUninit::uninit()))))
    }

    /// # Safety
    /// To be called once, and what is made with the borrow must be gone before
    /// this is dropped: in a struct, a field that is declared earlier.
    pub unsafe fn lend(&self) -> &'static mut MaybeUninit<T> {
        // SAFETY: the memory is there until drop, and by the caller's word
        // nobody else has it and nobody uses it longer.
        unsafe { &mut *self.0.as_ptr() }
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        // SAFETY: from Box::leak, freed once, no longer lent.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Holder {
        borrowed: &'static mut String,
        _place: Place<String>,
    }

    impl Drop for Holder {
        fn drop(&mut self) {
            // SAFETY: filled below, dropped once.
            unsafe { std::ptr::drop_in_place(self.borrowed) };
        }
    }

    /// For Miri: `cargo +nightly miri test -p debox-probe place`.
    #[test]
    fn the_borrow_outlives_moves() {
        let place = Place::new();
        // SAFETY: once; the field before `_place`.
        let borrowed = unsafe { place.lend() }.write("text".into());
        let holder = Holder {
            borrowed,
            _place: place,
        };
        let moved = Box::new(holder);
        moved.borrowed.push('s');
        let back = *moved;
        assert_eq!(*back.borrowed, "texts");
    }
}
