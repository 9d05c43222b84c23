//! What the kernel refuses a thread that has given files up, right by right; and what
//! is left to it.

use super::super::check;
use super::{files, version};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// A directory with a file, a directory and a socket in it.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let process = std::process::id();
        let place = Place(std::env::temp_dir().join(format!("baton-confined-{name}-{process}")));
        fs::create_dir(&place.0).unwrap();
        fs::write(place.there(), "there").unwrap();
        fs::create_dir(place.directory()).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(place.socket()).unwrap();
        place
    }

    fn there(&self) -> PathBuf {
        self.0.join("there")
    }

    fn directory(&self) -> PathBuf {
        self.0.join("directory")
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    fn new_name(&self) -> PathBuf {
        self.0.join("made")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that may be traced as long as nothing forbids it.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Sleeper {
        Sleeper(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn trace(&self) -> io::Result<()> {
        // SAFETY: numbers only.
        let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, self.0.id() as libc::pid_t, 0, 0) };
        check(result as libc::c_int).map(drop)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn make_node(at: &Path, kind: libc::mode_t) -> io::Result<()> {
    let at = path(at);
    // SAFETY: `at` is a string with its end.
    check(unsafe { libc::mknod(at.as_ptr(), kind | 0o600, 0) }).map(drop)
}

/// Without a word of writing: to make a file is a right of its own.
fn make_regular(at: &Path) -> io::Result<()> {
    let at = path(at);
    // SAFETY: `at` is a string with its end.
    let made = check(unsafe { libc::open(at.as_ptr(), libc::O_RDONLY | libc::O_CREAT, 0o600) })?;
    // SAFETY: new, and owned by nobody else.
    unsafe { libc::close(made) };
    Ok(())
}

fn truncate(at: &Path) -> io::Result<()> {
    let at = path(at);
    // SAFETY: `at` is a string with its end.
    check(unsafe { libc::truncate(at.as_ptr(), 0) }).map(drop)
}

/// In a thread of its own that has given files up: the tests' other threads have not.
/// None: the kernel cannot, so there is nothing to see.
fn confined<R: Send>(test: impl FnOnce() -> R + Send) -> Option<R> {
    let outcome = std::thread::scope(|scope| {
        let thread = scope.spawn(|| files().map(|()| test()));
        thread
            .join()
            .unwrap_or_else(|why| std::panic::resume_unwind(why))
    });
    match outcome {
        Ok(seen) => Some(seen),
        // Not built in, or not switched on (landlock(7)); anything else is a fault of ours.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP)) => {
            eprintln!("skipped: the kernel has no Landlock ({error})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn who_has_given_files_up_writes_none_makes_none_and_starts_no_program() {
    let place = Place::new("refused");
    let (there, made) = (&place.there(), &place.new_name());
    let attempts = || -> Vec<(&str, io::Result<()>)> {
        let mut attempts = vec![
            (
                "writing",
                OpenOptions::new().write(true).open(there).map(drop),
            ),
            (
                "appending",
                OpenOptions::new().append(true).open(there).map(drop),
            ),
            (
                "reading and writing",
                OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(there)
                    .map(drop),
            ),
            ("a file", make_regular(made)),
            ("a file to write to", File::create(made).map(drop)),
            ("another name", fs::hard_link(there, made)),
            ("a new name", fs::rename(there, made)),
            ("a directory", fs::create_dir(made)),
            ("a directory's end", fs::remove_dir(place.directory())),
            ("a symbolic link", std::os::unix::fs::symlink(there, made)),
            ("a pipe", make_node(made, libc::S_IFIFO)),
            ("a character device", make_node(made, libc::S_IFCHR)),
            ("a block device", make_node(made, libc::S_IFBLK)),
            (
                "a program",
                Command::new("/bin/true")
                    .spawn()
                    .map(|mut child| drop(child.wait())),
            ),
        ];
        // before, by what refuses writing, and not of a path
        if version().is_ok_and(|version| version >= 3) {
            attempts.push(("truncation", truncate(there)));
        }
        attempts
    };
    let Some(refused) = confined(attempts) else {
        return;
    };
    for (what, outcome) in refused {
        let error = outcome.expect_err(what);
        assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{what}: {error}");
    }
    assert_eq!(fs::read(there).unwrap(), b"there");
    assert!(!made.exists() && place.directory().exists());
    // Nor has the thread that started it given anything up.
    File::create(made).unwrap();
}

#[test]
fn who_has_given_files_up_traces_nobody() {
    let sleeper = Sleeper::new();
    let Some(outcome) = confined(|| sleeper.trace()) else {
        return;
    };
    assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EPERM));
}

#[test]
fn who_has_given_files_up_reads_and_removes_sockets_and_so_do_its_threads() {
    let place = Place::new("left");
    let test = || {
        let mut text = String::new();
        File::open(place.there())
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "there");
        assert_eq!(fs::read_dir(&place.0).unwrap().count(), 3);
        fs::remove_file(place.socket()).unwrap();
        let started = std::thread::spawn({
            let there = place.there();
            move || {
                (
                    fs::read(&there).unwrap(),
                    OpenOptions::new().write(true).open(there),
                )
            }
        });
        let (read, writing) = started.join().unwrap();
        assert_eq!(read, b"there");
        assert_eq!(writing.unwrap_err().raw_os_error(), Some(libc::EACCES));
    };
    let _ = confined(test);
}
