//! The program by which a control group of version 2 bars device files: version 2 has no file for it, and
//! asks a program of ours in the kernel at each opening.
//!
//! It is put together here, instruction by instruction: a comparison per device file needs no
//! compiler. It goes with its group.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;

use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

use super::devices::DeviceFile;

const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_TYPE_CGROUP_DEVICE: u32 = 6;
/// Programs of groups above, as service managers set them, go on to have their say.
const ALLOW_MULTI: u32 = 2;

/// What the program is given: three words, of which the first says what is done (16 bits up) to
/// which kind of file (the lower 16).
const ACCESS: i16 = 0;
const MAJOR: i16 = 4;
const MINOR: i16 = 8;
const MAKE: i32 = 1;
const BLOCK: i32 = 1;
const CHARACTER: i32 = 2;

// Operations of the kernel's machine, as `linux/bpf.h` composes them.
const LOAD_WORD: u8 = 0x61;
const MOVE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const AND: u8 = 0x57;
const SHIFT_RIGHT: u8 = 0x77;
const JUMP: u8 = 0x05;
const JUMP_IF_ANY_BIT: u8 = 0x45;
const JUMP_IF_NOT: u8 = 0x55;
const EXIT: u8 = 0x95;

const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const DONE: u8 = 2;
const KIND: u8 = 3;
const MAJOR_IS: u8 = 4;
const MINOR_IS: u8 = 5;

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    operation: u8,
    /// The one that is changed in the lower half, the other in the upper.
    registers: u8,
    offset: i16,
    value: i32,
}

/// What `PROG_LOAD` takes, as far as it is used.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

/// What `PROG_ATTACH` takes.
#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
    replaced: u32,
}

/// Bars a group from all device files but these.
pub fn bar(folder: &Path, open: &[DeviceFile]) -> io::Result<()> {
    // Kernels before 5.11 count programs as locked memory, of which services have little by default.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let program = load(&assemble(open)?)?;
    let group = File::open(folder)?;
    let descriptor = |raw: i32| u32::try_from(raw).map_err(io::Error::other);
    let mut attach = Attach {
        target: descriptor(group.as_raw_fd())?,
        program: descriptor(program.as_raw_fd())?,
        attach_type: ATTACH_TYPE_CGROUP_DEVICE,
        flags: ALLOW_MULTI,
        replaced: 0,
    };
    // The group holds the program from here on.
    bpf(PROG_ATTACH, &mut attach).map(drop)
}

fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    const LICENSE: &std::ffi::CStr = c"Apache-2.0";
    let mut load = Load {
        kind: PROG_TYPE_CGROUP_DEVICE,
        count: u32::try_from(program.len()).map_err(io::Error::other)?,
        instructions: program.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: *b"allotment_device",
        interface: 0,
        attach_type: ATTACH_TYPE_CGROUP_DEVICE,
    };
    // The kernel wants a zero at the end of the name.
    load.name[15] = 0;
    let descriptor = bpf(PROG_LOAD, &mut load)?;
    // SAFETY: the kernel has just made it for us, and nobody else knows it.
    #[allow(unsafe_code)]
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Asks the kernel. The structure is one of the above, by command.
fn bpf<T>(command: libc::c_int, with: &mut T) -> io::Result<i32> {
    // SAFETY: the structure outlives the call, its size is told, and what it points to outlives it
    // likewise.
    #[allow(unsafe_code)]
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(with),
            size_of::<T>(),
        )
    };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(answer).map_err(io::Error::other)
}

/// The program: no file may be made, each of these may be opened, and nothing else.
fn assemble(open: &[DeviceFile]) -> io::Result<Vec<Instruction>> {
    let mut program = vec![
        read(DONE, ACCESS),
        step(MOVE_REGISTER, KIND, DONE, 0, 0),
        step(AND, KIND, 0, 0, 0xffff),
        step(SHIFT_RIGHT, DONE, 0, 0, 16),
        read(MAJOR_IS, MAJOR),
        read(MINOR_IS, MINOR),
        step(JUMP_IF_ANY_BIT, DONE, 0, 1, MAKE),
        step(JUMP, 0, 0, 2, 0),
    ];
    program.extend(answer(false));
    for file in open {
        let number = |part: u32| i32::try_from(part).map_err(io::Error::other);
        let kind = if file.block { BLOCK } else { CHARACTER };
        let mut wanted = vec![(KIND, kind), (MAJOR_IS, number(file.major)?)];
        if let Some(minor) = file.minor {
            wanted.push((MINOR_IS, number(minor)?));
        }
        let mut past =
            i16::try_from(wanted.len() + answer(true).len()).map_err(io::Error::other)?;
        for (register, value) in wanted {
            past -= 1;
            program.push(step(JUMP_IF_NOT, register, 0, past, value));
        }
        program.extend(answer(true));
    }
    program.extend(answer(false));
    Ok(program)
}

fn answer(may: bool) -> [Instruction; 2] {
    [
        step(MOVE, RESULT, 0, 0, i32::from(may)),
        step(EXIT, 0, 0, 0, 0),
    ]
}

fn read(into: u8, offset: i16) -> Instruction {
    step(LOAD_WORD, into, CONTEXT, offset, 0)
}

fn step(operation: u8, into: u8, from: u8, offset: i16, value: i32) -> Instruction {
    Instruction {
        operation,
        registers: into | (from << 4),
        offset,
        value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel would, in as much as it is used here.
    fn run(program: &[Instruction], context: [u32; 3]) -> bool {
        let mut registers = [0_i64; 11];
        let mut at = 0_i64;
        loop {
            let now = program[usize::try_from(at).expect("a place")];
            let (into, from) = (
                usize::from(now.registers & 15),
                usize::from(now.registers >> 4),
            );
            let value = i64::from(now.value);
            at += 1;
            match now.operation {
                LOAD_WORD => {
                    let word = usize::try_from(now.offset / 4).expect("a place");
                    registers[into] = i64::from(context[word]);
                }
                MOVE => registers[into] = value,
                MOVE_REGISTER => registers[into] = registers[from],
                AND => registers[into] &= value,
                SHIFT_RIGHT => registers[into] >>= value,
                JUMP => at += i64::from(now.offset),
                JUMP_IF_ANY_BIT if registers[into] & value != 0 => at += i64::from(now.offset),
                JUMP_IF_NOT if registers[into] != value => at += i64::from(now.offset),
                JUMP_IF_ANY_BIT | JUMP_IF_NOT => {}
                EXIT => return registers[0] == 1,
                other => panic!("{other:#x} is not used"),
            }
        }
    }

    #[test]
    fn a_program_lets_open_what_it_lists_and_nothing_else() {
        const READ: u32 = 2;
        const WRITE: u32 = 4;
        let character = |major, minor| DeviceFile {
            block: false,
            major,
            minor,
        };
        let disk = DeviceFile {
            block: true,
            ..character(195, Some(9))
        };
        let program = assemble(&[character(195, Some(0)), character(136, None), disk]);
        let program = program.expect("put together");
        let asked = |done: u32, kind: i32, major: u32, minor: u32| {
            run(&program, [(done << 16) | kind.unsigned_abs(), major, minor])
        };
        for done in [READ, WRITE, READ | WRITE] {
            assert!(asked(done, CHARACTER, 195, 0));
            assert!(asked(done, CHARACTER, 136, 77));
            assert!(asked(done, BLOCK, 195, 9));
            assert!(!asked(done, CHARACTER, 195, 1));
            assert!(!asked(done, CHARACTER, 195, 9));
            assert!(!asked(done, BLOCK, 195, 0));
            assert!(!asked(done, CHARACTER, 1, 0));
        }
        assert!(!asked(MAKE.unsigned_abs(), CHARACTER, 195, 0));
        assert!(!run(
            &assemble(&[]).expect("put together"),
            [0x0002_0002, 1, 3]
        ));
    }
}
