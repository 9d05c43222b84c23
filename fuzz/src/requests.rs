//! Requests of a session whose turn it is not.

use crate::pieces::lengths;
use crate::protocol::frontend::{RequestEnd, RequestSkipper, SkipError};
use crate::protocol::message_start::{look, Start};

type Ends = (Vec<(usize, RequestEnd)>, Option<SkipError>);

fn skipped(input: &[u8], piece: usize) -> Ends {
    let mut skipper = RequestSkipper::new();
    let (mut at, mut found) = (0, Vec::new());
    while at < input.len() {
        assert!(skipper.wanted() > 0);
        let take = piece.min(input.len() - at);
        match skipper.feed(&input[at..at + take]) {
            Ok((consumed, end)) => {
                assert!(consumed > 0 && consumed <= take);
                assert!(end.is_some() || consumed == take);
                at += consumed;
                if let Some(end) = end {
                    assert!(!skipper.in_request());
                    found.push((at, end));
                }
            }
            Err(error) => return (found, Some(error)),
        }
    }
    (found, None)
}

/// Whoever waits for what `look` asks for comes to an end, and asks for more each
/// time; how much of what is there was shown does not change the answer but to
/// "let a backend read it".
fn looked(input: &[u8], may_begin: usize) {
    let mut available = 0;
    while let Start::Needs(least) = look(&input[..available], available, may_begin) {
        assert!(least > available && least <= may_begin.max(available + 5));
        for shown in [0, 1, 5, available / 2] {
            let shown = shown.min(available);
            match look(&input[..shown], available, may_begin) {
                Start::Ready => {}
                seen => assert_eq!(seen, Start::Needs(least)),
            }
        }
        if least > input.len() {
            return;
        }
        available = least;
    }
}

pub fn run(data: &[u8]) {
    let [one, some, all] = lengths(data).map(|piece| skipped(data, piece));
    assert_eq!(one, all);
    assert_eq!(some, all);
    for may_begin in [8, 100, 32_768] {
        looked(data, may_begin);
    }
}
