//! A private key's file: who else may read it, as check_ssl_key_file_permissions in
//! be-secure-common.c has it. Blocks, and is called at the start and from a thread of
//! its own at a reload.

use crate::shell::sys::process;
use std::io;
use std::os::unix::fs::MetadataExt;

/// As %m of the server's texts: without the number.
pub fn error_text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Refuses a file that others can read, as the server does.
pub fn check_permissions(path: &str) -> Result<(), String> {
    let about = std::fs::metadata(path).map_err(|error| {
        let error = error_text(&error);
        format!("could not access private key file \"{path}\": {error}")
    })?;
    judge(
        path,
        about.is_file(),
        about.uid(),
        about.mode(),
        process::own_uid(),
    )
}

/// The rule alone.
fn judge(path: &str, is_file: bool, owner: u32, mode: u32, own: u32) -> Result<(), String> {
    if !is_file {
        return Err(format!("private key file \"{path}\" is not a regular file"));
    }
    if owner != own && owner != 0 {
        return Err(format!(
            "private key file \"{path}\" must be owned by the database user or root"
        ));
    }
    if (owner == own && mode & 0o077 != 0) || (owner == 0 && mode & 0o037 != 0) {
        return Err(format!(
            "private key file \"{path}\" has group or world access"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_others_may_read_is_refused_as_the_server_does() {
        let judged = |owner, mode| judge("k", true, owner, mode, 100).is_ok();
        assert!(judged(100, 0o100_600) && judged(100, 0o100_400));
        assert!(!judged(100, 0o100_640) && !judged(100, 0o100_604));
        assert!(judged(0, 0o100_640) && !judged(0, 0o100_660) && !judged(0, 0o100_644));
        assert!(!judged(7, 0o100_600));
        assert!(judge("k", false, 100, 0o600, 100).is_err());
    }
}
