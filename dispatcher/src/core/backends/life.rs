//! What a backend is, and how many of a pool's are what.

use super::counts::Counted;

/// What a backend is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It is logging in, and has not attached yet.
    Starting,
    /// So it is, and shall exit when it has.
    Unwanted,
    /// It serves any session of its pool.
    Shared,
    /// It is one session's for now.
    Dedicated,
    /// It is to exit, and gets nothing more.
    Leaving { dedicated: bool },
    /// Its process has ended. The slot stays its own until all are found whom it may
    /// have had (burial.rs).
    Gone,
}

impl Life {
    pub fn is_starting(self) -> bool {
        matches!(self, Life::Starting | Life::Unwanted)
    }

    /// May it be given a session?
    #[cfg(test)]
    pub fn may_serve(self) -> bool {
        matches!(self, Life::Shared | Life::Dedicated)
    }

    pub fn is_leaving(self) -> bool {
        matches!(self, Life::Unwanted | Life::Leaving { .. } | Life::Gone)
    }

    /// Held by a transaction, or by its own start: one that is told to go stays
    /// until the transaction has ended, and so does its extra place.
    pub fn may_be_held(self) -> bool {
        matches!(
            self,
            Life::Starting | Life::Shared | Life::Leaving { dedicated: false }
        )
    }

    pub fn is_dedicated(self) -> bool {
        matches!(self, Life::Dedicated | Life::Leaving { dedicated: true })
    }

    /// Its place in [`Lives`].
    fn kind(self) -> usize {
        match self {
            Life::Starting => 0,
            Life::Unwanted => 1,
            Life::Shared => 2,
            Life::Dedicated => 3,
            Life::Leaving { .. } => 4,
            Life::Gone => 5,
        }
    }

    pub fn may_become(self, to: Life) -> bool {
        match self {
            _ if to == Life::Gone => self != Life::Gone,
            Life::Starting => !to.is_dedicated(),
            Life::Unwanted => to == Life::Leaving { dedicated: false },
            Life::Gone => false,
            Life::Shared | Life::Dedicated | Life::Leaving { .. } => {
                !to.is_starting() && (!self.is_leaving() || to.is_leaving())
            }
        }
    }
}

/// How many of a pool's backends are what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lives {
    by_kind: [u32; 6],
    /// Shared ones that no transaction holds.
    for_all: u32,
    of_no_role: u32,
}

impl Lives {
    /// One is something else now; it comes, or goes.
    pub fn count(&mut self, was: Option<Counted>, is: Option<Counted>) {
        if let Some(is) = is {
            self.by_kind[is.life.kind()] += 1;
            self.for_all += u32::from(is.is_for_all());
            self.of_no_role += u32::from(is.is_of_no_role());
        }
        if let Some(was) = was {
            self.by_kind[was.life.kind()] -= 1;
            self.for_all -= u32::from(was.is_for_all());
            self.of_no_role -= u32::from(was.is_of_no_role());
        }
    }

    fn of(&self, lives: &[Life]) -> usize {
        let count = |life: &Life| self.by_kind[life.kind()] as usize;
        lives.iter().map(count).sum()
    }

    pub fn shared(&self) -> usize {
        self.of(&[Life::Shared])
    }

    pub fn shared_and_not_held(&self) -> usize {
        self.for_all as usize
    }

    /// They start, or are any session's, and no session has them for long.
    pub fn of_no_role(&self) -> usize {
        self.of_no_role as usize
    }

    /// As [`Life::is_starting`].
    pub fn starting(&self) -> usize {
        self.of(&[Life::Starting, Life::Unwanted])
    }

    /// As [`Life::may_serve`].
    pub fn may_serve(&self) -> usize {
        self.of(&[Life::Shared, Life::Dedicated])
    }

    /// Those that serve its sessions in turn, or are starting to.
    pub fn expected(&self) -> usize {
        self.of(&[Life::Starting, Life::Shared])
    }

    /// They have come, and their processes have not ended.
    pub fn attached(&self) -> usize {
        let leaving = Life::Leaving { dedicated: false };
        self.may_serve() + self.of(&[leaving])
    }
}
