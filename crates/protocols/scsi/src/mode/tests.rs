use proptest::prelude::*;

use super::*;
use crate::cdb::ModeSelect;

const CONFIG: Config = Config {
    write_cache: true,
    write_cache_changeable: true,
    thin: true,
    saving: false,
    task_set_per_nexus: true,
    thresholds: Thresholds { available: None, used: None },
};
const MEDIUM: Medium = Medium { blocks: 0x1000, block_len: 512, write_protected: false };

fn ask(page: u8, subpage: u8) -> ModeSense {
    ModeSense {
        no_block_descriptor: true,
        long_lba_accepted: false,
        control: PageControl::Current,
        page,
        subpage,
        allocation: 255,
        long: false,
    }
}

fn select(list: &[u8]) -> ModeSelect {
    ModeSelect { page_format: true, save: false, parameter_len: list.len() as u16, long: false }
}

fn apply(pages: &mut Pages, list: &[u8]) -> Result<Selected, Sense> {
    pages.select(&select(list), list, &MEDIUM)
}

#[test]
fn the_caching_page_with_a_short_block_descriptor() {
    let request = ModeSense { no_block_descriptor: false, ..ask(CACHING, 0) };
    let data = Pages::new(&CONFIG).sense(&request, &MEDIUM).unwrap();
    assert_eq!(data[..14], [31, 0, 0x10, 8, 0, 0, 0x10, 0, 0, 0, 2, 0, 0x08, 18]);
    assert_eq!(data[14], 0x04);
    assert_eq!(data.len(), 32);
}

#[test]
fn thresholds_begin_as_configured_and_mode_select_sets_them() {
    let thresholds = Thresholds { available: Some(0x0102), used: None };
    let mut pages = Pages::new(&Config { thresholds, ..CONFIG });
    let data = pages.sense(&ask(INFORMATIONAL_EXCEPTIONS, 2), &MEDIUM).unwrap();
    assert_eq!(data[4..8], [0x5C, 2, 0, 28]);
    assert_eq!(data[20..36], [0x81, 1, 0, 0, 0, 0, 1, 2, 0x02, 2, 0, 0, 0, 0, 0, 0]);
    assert_eq!(pages.thresholds(), thresholds);
    let mut list = [&[0; 4][..], &data[4..]].concat();
    (list[28], list[35]) = (0x82, 9);
    list[20] = 0x01;
    assert!(apply(&mut pages, &list).unwrap().changed);
    assert_eq!(pages.thresholds(), Thresholds { available: None, used: Some(9) });
    // The resource and the arming cannot change.
    list[21] = 2;
    assert!(apply(&mut pages, &list).is_err());
    // Without LBPERE no threshold is reported. Without configured thresholds LBPERE is zero.
    let mut list =
        [&[0; 4][..], &pages.sense(&ask(READ_WRITE_ERROR_RECOVERY, 0), &MEDIUM).unwrap()[4..]].concat();
    assert_eq!(list[4 + 7], 0x80);
    list[4 + 7] = 0;
    list[4] &= 0x3F;
    apply(&mut pages, &list).unwrap();
    assert_eq!(pages.thresholds(), Thresholds::default());
    assert_eq!(Pages::new(&CONFIG).thresholds(), Thresholds::default());
}

#[test]
fn the_control_page_with_a_long_lba_block_descriptor() {
    let request =
        ModeSense { no_block_descriptor: false, long_lba_accepted: true, long: true, ..ask(CONTROL, 0) };
    let medium = Medium { blocks: 0x01_0000_0002, block_len: 4096, write_protected: true };
    let data = Pages::new(&CONFIG).sense(&request, &medium).unwrap();
    assert_eq!(data[..8], [0, 34, 0, 0x90, 1, 0, 0, 16]);
    assert_eq!(data[8..24], [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0x10, 0]);
    assert_eq!(data[24..], [0x0A, 10, 0x22, 0x10, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0]);
}

#[test]
fn a_medium_too_large_for_a_short_descriptor_has_all_ones_there() {
    let request = ModeSense { no_block_descriptor: false, ..ask(CACHING, 0) };
    let medium = Medium { blocks: 1 << 32, ..MEDIUM };
    let data = Pages::new(&CONFIG).sense(&request, &medium).unwrap();
    assert_eq!(data[4..12], [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 2, 0]);
}

fn codes(request: &ModeSense) -> Vec<(u8, u8)> {
    let data = Pages::new(&CONFIG).sense(request, &MEDIUM).unwrap();
    ModeData::parse(&data, request.long).unwrap().pages.iter().map(|p| (p.0, p.1)).collect()
}

#[test]
fn all_pages_and_all_subpages_come_in_ascending_order() {
    let plain = [(0x01, 0), (0x08, 0), (0x0A, 0), (0x1C, 0)];
    let all = [(0x01, 0), (0x08, 0), (0x0A, 0), (0x0A, 1), (0x1C, 0), (0x1C, 2)];
    for long in [false, true] {
        assert_eq!(codes(&ModeSense { long, ..ask(ALL_PAGES, 0) }), plain);
        assert_eq!(codes(&ModeSense { long, ..ask(ALL_PAGES, ALL_SUBPAGES) }), all);
        assert_eq!(codes(&ModeSense { long, ..ask(CONTROL, ALL_SUBPAGES) }), all[2..4]);
        assert_eq!(codes(&ModeSense { long, ..ask(CONTROL, 1) }), all[3..4]);
    }
}

#[test]
fn pages_and_subpages_that_are_not_there_are_pointed_at() {
    let pages = Pages::new(&Config { thin: false, ..CONFIG });
    let sense = |page, subpage| pages.sense(&ask(page, subpage), &MEDIUM);
    assert_eq!(sense(0x02, 0), Err(Sense::invalid_field_in_cdb(2, Some(5))));
    assert_eq!(sense(INFORMATIONAL_EXCEPTIONS, 2), Err(Sense::invalid_field_in_cdb(3, None)));
    assert_eq!(sense(CACHING, 1), Err(Sense::invalid_field_in_cdb(3, None)));
    assert_eq!(sense(ALL_PAGES, 1), Err(Sense::invalid_field_in_cdb(3, None)));
}

#[test]
fn changeable_values_are_the_bits_that_select_accepts() {
    let mut pages = Pages::new(&CONFIG);
    let request = ModeSense { control: PageControl::Changeable, ..ask(ALL_PAGES, 0) };
    let data = pages.sense(&request, &MEDIUM).unwrap();
    let changeable = ModeData::parse(&data, false).unwrap();
    let data = pages.sense(&ask(ALL_PAGES, 0), &MEDIUM).unwrap();
    let current = ModeData::parse(&data, false).unwrap();
    for (code, _, values) in &current.pages {
        for bit in 0..values.len() * 8 {
            let mut values = values.clone();
            values[bit / 8] ^= 0x80 >> (bit % 8);
            let may = changeable.page(*code, 0).unwrap()[bit / 8] & (0x80 >> (bit % 8)) != 0;
            let before = pages.clone();
            let done = apply(&mut pages, &select_list(*code, &values, false));
            if may {
                assert_eq!(done, Ok(Selected { changed: true, saved: false }));
                assert_ne!(pages, before);
                pages = before;
            } else {
                let byte = 4 + 2 + (bit / 8) as u16;
                assert_eq!(
                    done,
                    Err(Sense::invalid_field_in_parameter_list(byte, Some(7 - (bit % 8) as u8)))
                );
                assert_eq!(pages, before);
            }
        }
    }
}

#[test]
fn wce_d_sense_and_swp_follow_select_and_swp_shows_in_the_header() {
    let mut pages = Pages::new(&CONFIG);
    assert!(pages.write_cache() && !pages.descriptor_sense() && !pages.software_write_protect());
    let mut list = select_list(CACHING, &[0; 18], false);
    list.extend([0x0A, 10, 0x26, 0x10, 0x08, 0, 0, 0, 0xFF, 0xFF, 0, 0]);
    assert_eq!(apply(&mut pages, &list), Ok(Selected { changed: true, saved: false }));
    assert!(!pages.write_cache() && pages.descriptor_sense() && pages.software_write_protect());
    let data = ModeData::parse(&pages.sense(&ask(CACHING, 0), &MEDIUM).unwrap(), false).unwrap();
    assert!(data.write_protected && data.dpo_fua);
    assert_eq!(data.write_cache(), Some(false));
    pages.reset();
    assert_eq!(pages, Pages::new(&CONFIG));
}

#[test]
fn what_was_sensed_can_be_selected_again_and_changes_nothing() {
    for long in [false, true] {
        for long_lba_accepted in [false, long] {
            let mut pages = Pages::new(&CONFIG);
            let request = ModeSense {
                no_block_descriptor: false,
                long_lba_accepted,
                long,
                ..ask(ALL_PAGES, ALL_SUBPAGES)
            };
            let list = pages.sense(&request, &MEDIUM).unwrap();
            let done = pages.select(&ModeSelect { long, ..select(&list) }, &list, &MEDIUM);
            assert_eq!(done, Ok(Selected::default()));
        }
    }
}

#[test]
fn a_list_truncated_within_a_page_is_a_length_error_without_effect() {
    let before = Pages::new(&CONFIG);
    let mut list = select_list(CACHING, &[0; 18], false);
    list.extend([0x0A, 10, 0x26, 0x10, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0]);
    for len in 1..list.len() {
        let mut pages = before.clone();
        let done = apply(&mut pages, &list[..len]);
        if len == 4 || len == 24 {
            assert!(done.is_ok(), "{len}");
        } else {
            assert_eq!(done, Err(Sense::parameter_list_length_error()), "{len}");
            assert_eq!(pages, before);
        }
    }
    // Less data arrived than PARAMETER LIST LENGTH announced.
    let mut pages = before.clone();
    let done = pages.select(&select(&list), &list[..24], &MEDIUM);
    assert_eq!(done, Err(Sense::parameter_list_length_error()));
}

#[test]
fn an_error_in_a_later_page_leaves_the_earlier_ones_unchanged() {
    let mut pages = Pages::new(&CONFIG);
    let mut list = select_list(CACHING, &[0; 18], false);
    list.extend([0x02, 14]);
    list.extend([0; 14]);
    assert_eq!(apply(&mut pages, &list), Err(Sense::invalid_field_in_parameter_list(24, Some(5))));
    assert!(pages.write_cache());
}

#[test]
fn a_page_of_another_length_is_refused() {
    let mut pages = Pages::new(&CONFIG);
    let list = select_list(CACHING, &[0; 17], false);
    assert_eq!(apply(&mut pages, &list), Err(Sense::invalid_field_in_parameter_list(5, None)));
    let mut list = vec![0, 0, 0, 0, 0x4A, 1, 0, 27];
    list.extend([0; 27]);
    assert_eq!(apply(&mut pages, &list), Err(Sense::invalid_field_in_parameter_list(6, None)));
}

#[test]
fn a_block_descriptor_may_repeat_the_medium_but_not_change_it() {
    let with = |descriptor: [u8; 8]| {
        let list = [&[0, 0, 0, 8][..], &descriptor].concat();
        apply(&mut Pages::new(&CONFIG), &list)
    };
    for blocks in [[0, 0, 0x10, 0], [0; 4], [0xFF; 4]] {
        let [a, b, c, d] = blocks;
        assert!(with([a, b, c, d, 0, 0, 2, 0]).is_ok());
    }
    assert_eq!(with([0, 0, 0x10, 1, 0, 0, 2, 0]), Err(Sense::invalid_field_in_parameter_list(4, None)));
    assert_eq!(with([0, 0, 0x10, 0, 0, 0, 4, 0]), Err(Sense::invalid_field_in_parameter_list(9, None)));
    let two = [&[0, 0, 0, 16][..], &[0; 16]].concat();
    assert_eq!(apply(&mut Pages::new(&CONFIG), &two), Err(Sense::invalid_field_in_parameter_list(3, None)));
}

#[test]
fn without_saving_sp_and_saved_values_are_refused() {
    let mut pages = Pages::new(&CONFIG);
    let request = ModeSense { control: PageControl::Saved, ..ask(CACHING, 0) };
    assert_eq!(pages.sense(&request, &MEDIUM), Err(Sense::saving_parameters_not_supported()));
    let list = select_list(CACHING, &[0; 18], false);
    let save = ModeSelect { save: true, ..select(&list) };
    assert_eq!(pages.select(&save, &list, &MEDIUM), Err(Sense::invalid_field_in_cdb(1, Some(0))));
    let no_pages = ModeSelect { page_format: false, ..select(&list) };
    assert_eq!(pages.select(&no_pages, &list, &MEDIUM), Err(Sense::invalid_field_in_cdb(1, Some(4))));
    assert_eq!(apply(&mut pages, &[]), Ok(Selected::default()));
}

#[test]
fn saved_values_survive_a_reset_and_a_restart() {
    let config = Config { saving: true, ..CONFIG };
    let mut pages = Pages::new(&config);
    let list = select_list(CACHING, &[0; 18], false);
    let save = ModeSelect { save: true, ..select(&list) };
    assert_eq!(pages.select(&save, &list, &MEDIUM), Ok(Selected { changed: true, saved: true }));
    apply(&mut pages, &select_list(CACHING, &[[4].as_slice(), &[0; 17]].concat(), false)).unwrap();
    assert!(pages.write_cache());
    pages.reset();
    assert!(!pages.write_cache());
    let request = ModeSense { control: PageControl::Saved, ..ask(CACHING, 0) };
    let data = pages.sense(&request, &MEDIUM).unwrap();
    assert_eq!(data[4..7], [0x88, 18, 0], "PS is one and WCE was saved as zero");

    let mut restarted = Pages::new(&config);
    assert!(restarted.restore(&pages.saved_bytes()));
    assert_eq!(restarted, pages);
}

#[test]
fn restoring_never_changes_what_cannot_be_changed() {
    let config = Config { saving: true, ..CONFIG };
    let mut all_ones = Pages::new(&config).saved_bytes();
    // The values of the Caching page, after those of the error recovery page.
    all_ones[18..36].fill(0xFF);
    let mut pages = Pages::new(&config);
    assert!(pages.restore(&all_ones));
    assert_eq!(pages, Pages::new(&config));
    assert!(!pages.restore(&all_ones[..40]));
}

proptest! {
    #[test]
    fn no_list_makes_select_panic_or_change_what_cannot_be_changed(
        mut list in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>(), Just(0x0Au8), Just(8u8)], 0..64),
        long: bool,
        skip in 0usize..2,
    ) {
        let descriptor = if long { 6..8 } else { 3..4 };
        if skip == 1 && list.len() > 8 {
            list[descriptor].fill(0);
        }
        let mut pages = Pages::new(&Config { saving: true, ..CONFIG });
        let before = pages.clone();
        let request = ModeSelect { long, save: true, ..select(&list) };
        if pages.select(&request, &list, &MEDIUM).is_err() {
            prop_assert_eq!(&pages, &before);
        }
        for (new, old) in pages.pages.iter().zip(&before.pages) {
            for (i, mask) in new.changeable.iter().enumerate() {
                prop_assert_eq!((new.current[i] ^ old.current[i]) & !mask, 0);
            }
        }
    }

    #[test]
    fn no_bytes_make_parse_or_restore_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), long: bool) {
        let _ = ModeData::parse(&bytes, long);
        let _ = Pages::new(&CONFIG).restore(&bytes);
    }
}

/// Its sense data is always in descriptor format.
#[test]
fn a_device_without_blocks_has_no_block_descriptor() {
    let pages = Pages::objects();
    assert!(pages.descriptor_sense());
    let request = ModeSense {
        long: true,
        no_block_descriptor: false,
        long_lba_accepted: true,
        control: PageControl::Current,
        page: CONTROL,
        subpage: 0,
        allocation: 255,
    };
    let medium = Medium { blocks: 0, block_len: 0, write_protected: true };
    let data = pages.sense(&request, &medium).unwrap();
    assert_eq!(data[..8], [0, 18, 0, 0, 0, 0, 0, 0]);
    assert_eq!(data[8..11], [CONTROL, 10, 0x06]);
    let changeable = ModeSense { control: PageControl::Changeable, ..request };
    assert_eq!(pages.sense(&changeable, &medium).unwrap()[10..], [0; 10]);
}
