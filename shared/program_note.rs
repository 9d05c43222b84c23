// A note of a program's ELF file (elf(5)): the extension reads there which layout and version the
// program has, without executing it (program.c). Included where LAYOUT_VERSION is known.

const NOTE_NAME: &[u8; 9] = b"pg_baton\0";
const NOTE_VERSION_SIZE: usize = 32;

#[repr(C)]
struct Note {
    name_size: u32,
    content_size: u32,
    kind: u32,
    name: [u8; 12],
    layout_version: u32,
    version: [u8; NOTE_VERSION_SIZE],
}

#[used]
#[link_section = ".note.pg_baton"]
static NOTE: Note = Note {
    name_size: NOTE_NAME.len() as u32,
    content_size: (size_of::<u32>() + NOTE_VERSION_SIZE) as u32,
    kind: 1,
    name: padded(NOTE_NAME),
    layout_version: LAYOUT_VERSION,
    version: padded(env!("CARGO_PKG_VERSION").as_bytes()),
};

/// The bytes, and zeros after them.
const fn padded<const SIZE: usize>(bytes: &[u8]) -> [u8; SIZE] {
    assert!(bytes.len() < SIZE);
    let mut padded = [0; SIZE];
    let mut at = 0;
    while at < bytes.len() {
        padded[at] = bytes[at];
        at += 1;
    }
    padded
}
