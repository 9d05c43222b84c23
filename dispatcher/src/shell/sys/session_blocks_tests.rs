//! What was put away is what is taken out, and who has a slot has it alone.

use super::*;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn what_was_put_away_is_taken_out() {
    let mut state = 1;
    for zeros_of_eight in 0..=8 {
        let units: Vec<[u64; WORDS_A_UNIT]> = (0..7)
            .map(|_| {
                std::array::from_fn(|_| match random(&mut state) % 8 < zeros_of_eight {
                    true => 0,
                    false => random(&mut state),
                })
            })
            .collect();
        let kept = put_away(units.iter());
        assert_eq!(kept.len(), kept.capacity(), "no copy was left behind");
        let mut taken = vec![[0; WORDS_A_UNIT]; units.len()];
        take_out(&kept, taken.iter_mut());
        assert_eq!(taken, units);
    }
    let nothing = put_away([[0; WORDS_A_UNIT]; 3].iter());
    assert_eq!(*nothing, [0; 3], "zeros are a mask");
}

#[test]
fn blocks_lie_apart_from_wherever_the_first_one_begins() {
    // of OpenSSL 3.5: a session, and layers of records while keys change
    for slot in 0..8 {
        let from = first_unit(slot);
        let mut used = 0;
        for length in [5_584, 4_432, 4_432, 4_432] {
            let units = (HEADER_BYTES + length).div_ceil(UNIT_BYTES);
            let bits = room_for(units, used, from).expect("room");
            assert_eq!(bits & used, 0);
            assert_eq!(bits.count_ones() as usize, units);
            assert!(bits < 1 << UNITS);
            used |= bits;
        }
        let rest = UNITS - used.count_ones() as usize;
        assert!(room_for(rest + 1, used, from).is_none());
    }
}

#[test]
fn who_asks_says_whose_a_block_is() {
    assert!(is_of_a_session(7_616, c"../ssl/ssl_lib.c"));
    assert!(is_of_a_session(
        4_432,
        c"/usr/src/openssl/ssl/record/methods/tls_common.c"
    ));
    assert!(!is_of_a_session(1_040, c"../ssl/ssl_lib.c"), "a context");
    assert!(
        !is_of_a_session(16_736, c"../ssl/record/methods/tls_common.c"),
        "a buffer"
    );
    assert!(
        !is_of_a_session(5_000, c"../crypto/lhash/lhash.c"),
        "all sessions'"
    );
    assert!(!is_of_a_session(5_000, c""));
}

#[test]
fn a_session_at_rest_takes_no_pages_and_wakes_as_it_was() {
    set_apart();
    let mut one = SessionBlocks::new();
    let mut other = SessionBlocks::new();
    let (Some(slot), Some(another)) = (one.slot(), other.slot()) else {
        return; // pages of another size
    };
    assert_ne!(slot, another);
    let block = allocate(slot, 5_000).expect("room").cast::<[u8; 5_000]>();
    let beside = allocate(another, 5_000)
        .expect("room")
        .cast::<[u8; 5_000]>();
    assert_eq!(length_of(block.cast()), Some(5_000));
    // SAFETY: blocks of that size, of this test alone.
    unsafe {
        block.write(std::array::from_fn(|at| (at % 1_000 == 7).into()));
        beside.write([9; 5_000]);
        let was = block.read();
        one.rest();
        assert!(one.is_at_rest());
        assert_eq!(block.read(), [0; 5_000], "gone");
        assert_eq!(beside.read(), [9; 5_000], "another's is another's");
        one.wake();
        assert_eq!(block.read(), was);
        assert_eq!(length_of(block.cast()), Some(5_000));
    }
    free(block.cast());
    one.rest();
    assert!(!one.is_at_rest(), "there is nothing to put away");
    drop(one);
    // a block that outlives its session keeps its slot
    drop(other);
    let next: Vec<SessionBlocks> = (0..100).map(|_| SessionBlocks::new()).collect();
    assert!(next.iter().all(|one| one.slot() != Some(another)));
    other = SessionBlocks::new();
    other.rest();
    assert!(!other.is_at_rest());
    assert_eq!(length_of(std::ptr::null()), None);
}
