//! The checks, one file per area.

mod connections;
mod data_in;
mod data_out;
mod digests;
mod discovery;
mod iser;
mod keys;
mod login;
mod logout;
mod mount;
mod nop;
mod numbers;
mod protocol;
mod recovery1;
mod recovery2;
mod redirect;
mod reinstatement;
mod rpc;
mod scsi;
mod security;
mod task;
mod text;
mod v3_attributes;
mod v3_data;
mod v3_listing;
mod v3_names;
mod v42;
mod v4_compound;
mod v4_data;
mod v4_locks;
mod v4_names;
mod v4_opens;
mod v4_sessions;

use crate::check::Check;

/// Every check, in the order in which they run.
pub fn all() -> Vec<Check> {
    [
        login::CHECKS,
        keys::CHECKS,
        security::CHECKS,
        discovery::CHECKS,
        numbers::CHECKS,
        nop::CHECKS,
        text::CHECKS,
        data_in::CHECKS,
        data_out::CHECKS,
        task::CHECKS,
        logout::CHECKS,
        reinstatement::CHECKS,
        connections::CHECKS,
        digests::CHECKS,
        recovery1::CHECKS,
        recovery2::CHECKS,
        redirect::CHECKS,
        protocol::CHECKS,
        scsi::CHECKS,
        iser::CHECKS,
        rpc::CHECKS,
        mount::CHECKS,
        v3_names::CHECKS,
        v3_attributes::CHECKS,
        v3_data::CHECKS,
        v3_listing::CHECKS,
        v4_sessions::CHECKS,
        v4_compound::CHECKS,
        v4_names::CHECKS,
        v4_opens::CHECKS,
        v4_locks::CHECKS,
        v4_data::CHECKS,
        v42::CHECKS,
    ]
    .concat()
}

/// The checks that match a word: an area, `AREA/NAME`, or a part of a name. Empty if none matches.
pub fn matching(word: &str) -> Vec<Check> {
    let all = all();
    let by = |wanted: &dyn Fn(&Check) -> bool| all.iter().copied().filter(|c| wanted(c)).collect::<Vec<_>>();
    let exact = by(&|check| check.area.name() == word || check.full_name() == word);
    if exact.is_empty() { by(&|check| check.full_name().contains(word)) } else { exact }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_check_has_a_name_of_its_own_and_says_all_that_it_must() {
        let mut names = BTreeSet::new();
        for check in all() {
            let name = check.full_name();
            assert!(names.insert(name.clone()), "{name} is there twice");
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(check.name.chars().all(plain), "{name}");
            for text in [check.requires, check.why] {
                assert!(text.ends_with('.') && text.len() > 20, "{name}: {text:?} is no sentence");
            }
            let clause =
                ["RFC ", "SPC-", "SAM-", "SBC-"].iter().any(|standard| check.clauses.contains(standard));
            assert!(clause, "{name}: {:?} names no standard", check.clauses);
        }
    }

    #[test]
    fn areas_come_in_their_order() {
        let order: Vec<_> = all().iter().map(|check| check.area).collect();
        assert!(order.is_sorted());
    }

    #[test]
    fn a_word_chooses_an_area_a_check_or_a_part_of_names() {
        assert!(matching("nop").iter().all(|check| check.area.name() == "nop"));
        assert_eq!(matching("nop/echo").len(), 1);
        assert!(matching("echo").len() > 1);
        assert!(matching("nothing-of-the-kind").is_empty());
    }
}
