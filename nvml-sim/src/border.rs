//! The border to C: error codes, writes through the caller's pointers, and no panic past it.

use std::ffi::{CStr, c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

/// What a call answers instead of success; the numbers are NVML's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Refusal {
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NoPermission = 4,
    NotFound = 6,
    InsufficientSize = 7,
    DriverNotLoaded = 9,
    Timeout = 10,
    IrqIssue = 11,
    GpuIsLost = 15,
    ResetRequired = 16,
    InUse = 19,
    InsufficientResources = 23,
    VersionMismatch = 25,
    /// No answer at all: the call is tried again until there is one.
    Hangs = 998,
    Unknown = 999,
}

/// The result of a call before it becomes a number.
pub(crate) type Answer<T> = Result<T, Refusal>;

/// How often a call that hangs looks whether it may go on.
const HANG_CHECK: std::time::Duration = std::time::Duration::from_millis(20);

/// Runs a call's body and turns its result, or a panic, into NVML's number.
pub(crate) fn answer(body: impl Fn() -> Answer<()>) -> nvmlReturn_t {
    loop {
        match answer_once(&body) {
            hangs if hangs == Refusal::Hangs as nvmlReturn_t => std::thread::sleep(HANG_CHECK),
            answer => return answer,
        }
    }
}

fn answer_once(body: impl Fn() -> Answer<()>) -> nvmlReturn_t {
    // A panic that crossed into C would abort the caller's process, an agent with
    // running jobs; one unknown error is what a faulty driver would give it.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(refusal)) => refusal as nvmlReturn_t,
        Err(_) => Refusal::Unknown as nvmlReturn_t,
    }
}

/// Defines exported C functions whose bodies give an [`Answer`].
macro_rules! nvml_calls {
    ($($(#[$note:meta])* fn $name:ident($($arg:ident: $kind:ty),* $(,)?) $body:block)*) => {$(
        $(#[$note])*
        ///
        /// # Safety
        ///
        /// Pointers must be null or valid for what NVML's header says of this call.
        #[allow(non_snake_case, unused_unsafe)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            // SAFETY: the body touches memory only through `border`'s functions, and the
            // caller of a C function answers for its pointers, as with NVIDIA's library.
            $crate::border::answer(|| unsafe { $body })
        }
    )*};
}

/// Writes one value to where the caller asked for it.
///
/// # Safety
///
/// `to` is null or valid for a write of `T`.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Answer<()> {
    if to.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    // SAFETY: not null, and valid by this function's contract; unaligned since C callers
    // may pack their structures.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Writes a text with its final NUL into a buffer of `length` bytes.
///
/// # Safety
///
/// `to` is null or valid for `length` bytes.
pub(crate) unsafe fn put_text(to: *mut c_char, length: c_uint, text: &str) -> Answer<()> {
    if to.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    if text.len() >= length as usize {
        return Err(Refusal::InsufficientSize);
    }
    // SAFETY: the text and its NUL fit into the `length` bytes that the caller vouches for.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// Writes a list by NVML's rule: `count` comes in as the room and goes out as the need.
///
/// # Safety
///
/// `count` is null or valid; `to` is null or valid for `*count` items.
pub(crate) unsafe fn put_list<T>(to: *mut T, count: *mut c_uint, items: Vec<T>) -> Answer<()> {
    if count.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    let need = c_uint::try_from(items.len()).map_err(|_| Refusal::Unknown)?;
    // SAFETY: `count` is not null and valid by contract.
    let room = unsafe { count.read_unaligned() };
    // SAFETY: as above.
    unsafe { count.write_unaligned(need) };
    if need > room {
        return Err(Refusal::InsufficientSize);
    }
    if need > 0 && to.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    for (place, item) in items.into_iter().enumerate() {
        // SAFETY: `place` is below `need`, which is at most the room the caller vouches for.
        unsafe { to.add(place).write_unaligned(item) };
    }
    Ok(())
}

/// Writes a list by the rule of MIG's calls: without a place for it the need alone is told, and the
/// place, where there is one, is large enough.
///
/// # Safety
///
/// `count` is null or valid; `to` is null or valid for as many items as there can be.
pub(crate) unsafe fn put_all<T>(to: *mut T, count: *mut c_uint, items: Vec<T>) -> Answer<()> {
    let need = c_uint::try_from(items.len()).map_err(|_| Refusal::Unknown)?;
    // SAFETY: by this function's contract.
    unsafe { put(count, need) }?;
    if to.is_null() {
        return Ok(());
    }
    for (place, item) in items.into_iter().enumerate() {
        // SAFETY: the caller vouches for as many as there can be.
        unsafe { to.add(place).write_unaligned(item) };
    }
    Ok(())
}

/// Writes a bit mask of `words` machine words, for processors or memory nodes.
///
/// # Safety
///
/// `to` is null or valid for `words` items.
pub(crate) unsafe fn put_mask(to: *mut libc::c_ulong, words: c_uint, bits: &[u32]) -> Answer<()> {
    if to.is_null() || words == 0 {
        return Err(Refusal::InvalidArgument);
    }
    let mut mask: Vec<libc::c_ulong> = vec![0; words as usize];
    for &bit in bits {
        let word = mask
            .get_mut((bit / libc::c_ulong::BITS) as usize)
            .ok_or(Refusal::InsufficientSize)?;
        *word |= 1 << (bit % libc::c_ulong::BITS);
    }
    for (place, word) in mask.into_iter().enumerate() {
        // SAFETY: `place` is below `words`.
        unsafe { to.add(place).write_unaligned(word) };
    }
    Ok(())
}

/// Reads a C string of the caller.
///
/// # Safety
///
/// `from` is null or a NUL-terminated string.
pub(crate) unsafe fn read_text<'a>(from: *const c_char) -> Answer<&'a str> {
    if from.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    // SAFETY: not null, and NUL-terminated by contract.
    let text = unsafe { CStr::from_ptr(from) };
    text.to_str().map_err(|_| Refusal::InvalidArgument)
}

/// Checks the version word that the caller set at the head of a structure.
///
/// # Safety
///
/// `structure` is null or begins with a valid 32-bit version word.
pub(crate) unsafe fn check_version<T>(structure: *const T, version: u32) -> Answer<()> {
    // SAFETY: the version word is the structure's first field.
    if unsafe { read_version(structure) }? == version_word::<T>(version) {
        Ok(())
    } else {
        Err(Refusal::VersionMismatch)
    }
}

/// Reads the version word at the head of a structure.
///
/// # Safety
///
/// As for [`check_version`].
pub(crate) unsafe fn read_version<T>(structure: *const T) -> Answer<u32> {
    if structure.is_null() {
        return Err(Refusal::InvalidArgument);
    }
    // SAFETY: not null, and its first four bytes are the version word by contract.
    Ok(unsafe { structure.cast::<u32>().read_unaligned() })
}

/// NVML's version word: the structure's size, with its version in the top byte.
pub(crate) const fn version_word<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | (version << 24)
}

/// Fills a fixed array of C characters, cut to leave room for the final NUL.
pub(crate) fn text_array<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (place, byte) in array.iter_mut().take(N - 1).zip(text.bytes()) {
        *place = byte as c_char;
    }
    array
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvml_wrapper_sys::bindings as sys;

    #[test]
    fn a_panic_becomes_an_unknown_error() {
        assert_eq!(answer(|| panic!("a fault of the simulator")), 999);
    }

    #[test]
    fn a_text_that_does_not_fit_is_refused_and_nothing_is_written() {
        let mut buffer = [7 as c_char; 4];
        // SAFETY: the buffer has the length that is said.
        let refused = unsafe { put_text(buffer.as_mut_ptr(), 4, "four") };
        assert_eq!(refused, Err(Refusal::InsufficientSize));
        assert_eq!(buffer, [7; 4]);
    }

    #[test]
    fn a_list_answers_the_need_when_the_room_is_short() {
        let mut count = 1;
        let mut room = [0u32; 1];
        // SAFETY: one item of room is said and there.
        let refused = unsafe { put_list(room.as_mut_ptr(), &mut count, vec![4, 5]) };
        assert_eq!(refused, Err(Refusal::InsufficientSize));
        assert_eq!((count, room), (2, [0]));
    }

    #[test]
    fn structures_have_the_sizes_and_versions_of_nvidias_header() {
        assert_eq!(version_word::<sys::nvmlMemory_v2_t>(2), 0x0200_0028);
        assert_eq!(version_word::<sys::nvmlPciInfoExt_v1_t>(1), 0x0100_0040);
        assert_eq!(version_word::<sys::nvmlGpuFabricInfo_v2_t>(2), 0x0200_0024);
        assert_eq!(version_word::<sys::nvmlGpuFabricInfo_v3_t>(3), 0x0300_0028);
        assert_eq!(version_word::<sys::nvmlTemperature_v1_t>(1), 0x0100_000c);
        assert_eq!(size_of::<sys::nvmlMemory_t>(), 24);
        assert_eq!(size_of::<sys::nvmlPciInfo_t>(), 68);
        assert_eq!(size_of::<sys::nvmlProcessInfo_t>(), 24);
        assert_eq!(size_of::<sys::nvmlProcessInfo_v1_t>(), 16);
        assert_eq!(size_of::<sys::nvmlEventData_t>(), 32);
        assert_eq!(size_of::<sys::nvmlFieldValue_t>(), 40);
        assert_eq!(size_of::<sys::nvmlBAR1Memory_t>(), 24);
        assert_eq!(size_of::<sys::nvmlGpuFabricInfo_t>(), 28);
    }
}
