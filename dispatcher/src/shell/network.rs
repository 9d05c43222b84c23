//! Where clients come from, as limits count them.

use super::sys::socket::Address;

/// Where a client comes from: an address, of IPv6 the network that one customer
/// has (64 bits). Clients on a Unix socket come from nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    family: u16,
    bytes: [u8; 16],
}

impl Origin {
    pub fn of(address: &Address) -> Option<Origin> {
        if address.is_local() {
            return None;
        }
        let mut bytes = address.bytes;
        if address.family == libc::AF_INET6 as u16 {
            bytes[8..].fill(0);
        }
        Some(Origin {
            family: address.family,
            bytes,
        })
    }
}

/// Origins for tests.
#[cfg(test)]
pub mod samples {
    use super::{Address, Origin};

    pub fn address(family: i32, bytes: &[u8]) -> Address {
        let mut address = Address {
            family: family as u16,
            ..Address::default()
        };
        address.bytes[..bytes.len()].copy_from_slice(bytes);
        address
    }

    pub fn v4(last: u32) -> Option<Origin> {
        Origin::of(&address(libc::AF_INET, &last.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{address, v4};
    use super::*;

    #[test]
    fn a_network_of_ipv6_is_one_and_a_unix_socket_none() {
        let of = |last: u8, network: u8| {
            let mut bytes = [0x20; 16];
            (bytes[7], bytes[15]) = (network, last);
            Origin::of(&address(libc::AF_INET6, &bytes))
        };
        assert_eq!(of(1, 1), of(2, 1));
        assert_ne!(of(1, 1), of(1, 2));
        assert_ne!(v4(1), v4(2));
        assert_eq!(Origin::of(&Address::local()), None);
    }
}
