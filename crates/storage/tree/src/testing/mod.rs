//! Checks that any [`Tree`] must pass: POSIX's semantics as [`Tree`] states them. Feature
//! `testing`; not for programs.
//!
//! [`conform`] makes a directory for each check, and panics in the first that fails, whose name it
//! prints. [`model::compare`] does operations of the caller's choice to a tree and a plain model.
//! Checks skip operations that a tree does not support. Durability and concurrency are not tested.

mod attributes;
mod data;
mod extended;
mod listing;
pub mod model;
mod moving;
mod names;
mod permissions;

use runtime::Chain;

use crate::{
    Attributes, Caller, DirEntry, DirRoom, New, NewFile, NodeId, SetAttributes, Stability, Tree, TreeError,
};

/// Features that the tree under test lacks, at least where the test runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Without {
    /// Callers other than the super-user: a folder has them only if the process is root.
    pub users: bool,
    /// Devices.
    pub devices: bool,
}

/// A directory of its own for one check, which every caller may change.
struct Place<'a, T> {
    tree: &'a T,
    /// The directory. Its mode is 0777, and it belongs to the super-user.
    here: NodeId,
    root: Caller,
    alice: Caller,
    /// Shares group 2001 with Alice.
    bob: Caller,
    without: Without,
}

/// Prints the name of the check that failed.
struct Named(&'static str);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the tree does not pass `{}`", self.0);
        }
    }
}

macro_rules! conform {
    ($($module:ident { $($check:ident)* })*) => {
        /// Runs all checks against a tree. They leave their directories behind, in its root.
        pub async fn conform<T: Tree>(tree: &T, without: Without) {
            $($({
                let _named = Named(stringify!($check));
                let place = Place::new(tree, stringify!($check), without).await;
                $module::$check(&place).await;
            })*)*
        }
    };
}

conform! {
    names {
        a_new_file_is_found_by_its_name_and_is_empty
        a_lookup_finds_the_directory_itself_and_its_parent
        what_does_not_exist_is_not_found
        names_are_bytes_and_differ_in_each
        a_name_that_is_too_long_is_refused
        a_file_has_no_entries
        an_unchecked_create_of_a_file_that_exists_sets_its_size_alone
        a_guarded_create_refuses_a_name_that_exists
        an_exclusive_create_succeeds_again_for_its_verifier_alone
        a_new_file_gets_the_attributes_it_was_given
        directories_count_their_subdirectories
        a_symbolic_link_keeps_its_path_and_is_not_followed
        sockets_and_pipes_are_made_and_devices_by_root
        a_removed_file_is_gone_and_its_id_is_stale
        a_file_lives_as_long_as_it_has_a_name
        a_directory_that_has_entries_is_not_removed
        a_remove_takes_only_what_it_was_told_to
        a_link_is_another_name_of_the_same_file
        a_directory_has_one_name_only
        ids_of_other_trees_are_stale
        each_change_of_a_directory_shows_in_its_attributes
    }
    moving {
        a_moved_file_is_the_same_file
        a_move_replaces_what_has_the_new_name
        a_move_between_names_of_one_file_does_nothing
        a_directory_replaces_an_empty_directory_alone
        a_directory_does_not_move_into_itself
        a_moved_directory_has_another_parent
        a_move_of_what_does_not_exist_fails
        a_move_changes_both_directories
    }
    listing {
        a_listing_has_each_name_once_and_neither_dot_nor_dot_dot
        a_listing_goes_on_where_it_stopped
        a_listing_survives_changes_around_it
        a_listing_keeps_to_its_room
        a_listing_with_nodes_names_the_files
        an_empty_directory_ends_at_once
    }
    attributes {
        a_mode_is_set_with_all_its_bits
        a_size_cuts_and_extends_with_zeros
        times_are_set_to_what_was_given_and_to_now
        a_guard_that_does_not_match_changes_nothing
        only_regular_files_have_a_size_to_set
        a_change_of_attributes_shows_in_ctime_and_change
        nothing_to_set_changes_nothing
        the_root_has_attributes_and_space
    }
    data {
        written_bytes_are_read_back
        a_read_ends_with_the_file
        a_gap_reads_as_zeros
        a_write_makes_the_file_longer_and_changes_its_times
        long_data_in_many_pieces_is_one_write
        only_regular_files_have_data
        a_write_beyond_the_largest_file_is_refused
        a_commit_has_the_verifier_of_the_writes
        allocated_space_reads_as_zeros_and_makes_the_file_longer
        deallocated_bytes_read_as_zeros_and_the_size_stays
        data_and_holes_are_found
        a_copy_copies_bytes_and_holes
        a_copy_within_a_file_does_not_overlap
    }
    permissions {
        the_mode_says_what_access_grants
        data_is_for_those_whom_the_mode_lets
        owners_write_what_is_read_only
        a_directory_is_searched_listed_and_changed_by_its_mode
        only_the_owner_changes_mode_and_times
        only_root_gives_files_away
        an_owner_gives_files_to_groups_of_his
        who_may_write_may_touch
        a_file_belongs_to_who_makes_it
        a_directory_with_setgid_passes_its_group_on
        setgid_of_a_foreign_group_is_not_given
        a_write_by_another_takes_setuid_away
        a_file_that_changes_hands_loses_setuid
        of_a_sticky_directory_only_owners_remove
        who_may_not_write_does_not_cut
    }
    extended {
        an_extended_attribute_is_kept_replaced_and_removed
        extended_attributes_are_listed
        creating_and_replacing_differ
        extended_attributes_are_for_those_whom_the_mode_lets
        a_change_of_an_extended_attribute_shows_in_ctime
    }
}

impl<'a, T: Tree> Place<'a, T> {
    async fn new(tree: &'a T, name: &str, without: Without) -> Self {
        let root = Caller::root();
        let mode = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
        let made = tree.create(&root, &tree.root(), name.as_bytes(), New::Directory(mode)).await;
        let here = made.expect("a directory for the check").node;
        let set = tree.set_attributes(&root, &here, &mode, None).await;
        set.expect("whatever the umask");
        let user = |uid| Caller { uid, gid: uid, groups: [2001].into() };
        Self { tree, here, root, alice: user(1001), bob: user(1002), without }
    }

    /// An empty file.
    async fn file(&self, name: &str) -> NodeId {
        self.file_of(&self.root, name, 0o644).await
    }

    async fn file_of(&self, caller: &Caller, name: &str, mode: u32) -> NodeId {
        let new = New::File(NewFile::Guarded(mode_of(mode)));
        let made = self.tree.create(caller, &self.here, name.as_bytes(), new).await;
        made.expect("a new file").node
    }

    /// A directory in that of the check.
    async fn directory(&self, name: &str) -> NodeId {
        self.directory_of(&self.root, name, 0o755).await
    }

    async fn directory_of(&self, caller: &Caller, name: &str, mode: u32) -> NodeId {
        let made = self.tree.create(caller, &self.here, name.as_bytes(), New::Directory(mode_of(mode))).await;
        made.expect("a new directory").node
    }

    async fn get(&self, node: &NodeId) -> Attributes {
        self.tree.attributes(node).await.expect("attributes")
    }

    /// The node of `name` in the directory of the check.
    async fn find(&self, name: &str) -> Result<NodeId, TreeError> {
        self.tree.lookup(&self.root, &self.here, name.as_bytes()).await.map(|found| found.node)
    }

    async fn write(&self, node: &NodeId, at: u64, data: &[u8]) {
        write_all(self.tree, &self.root, node, at, data).await.expect("written");
    }

    /// All bytes of the file.
    async fn bytes(&self, node: &NodeId) -> Vec<u8> {
        let size = self.get(node).await.size;
        self.range(node, 0, size as usize).await
    }

    /// `len` bytes of the file.
    async fn range(&self, node: &NodeId, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let read = self.tree.read(&self.root, node, at + bytes.len() as u64, len - bytes.len()).await;
            let read = read.expect("read");
            assert!(!read.data.is_empty(), "the file ends at {}", at + bytes.len() as u64);
            bytes.extend(read.data.to_vec());
        }
        bytes
    }

    async fn set(&self, caller: &Caller, node: &NodeId, set: SetAttributes) -> Result<(), TreeError> {
        self.tree.set_attributes(caller, node, &set, None).await.map(drop)
    }

    /// All entries of a directory, so many bytes at a time.
    async fn list(&self, directory: &NodeId, bytes: usize) -> Vec<DirEntry> {
        let room = DirRoom { bytes, each: 24, names: bytes, nodes: false };
        let mut all: Vec<DirEntry> = Vec::new();
        loop {
            let cookie = all.last().map_or(0, |entry| entry.cookie);
            let part = self.tree.read_dir(&self.root, directory, cookie, room).await.expect("a listing");
            assert!(part.eof || !part.entries.is_empty(), "no entry, and not the end");
            all.extend(part.entries);
            if part.eof {
                return all;
            }
        }
    }
}

fn mode_of(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

fn size_of(size: u64) -> SetAttributes {
    SetAttributes { size: Some(size), ..SetAttributes::default() }
}

/// Writes all of `data`, in as many steps as the tree wants.
async fn write_all<T: Tree>(
    tree: &T,
    caller: &Caller,
    node: &NodeId,
    at: u64,
    data: &[u8],
) -> Result<(), TreeError> {
    let mut done = 0;
    while done < data.len() {
        let chain = Chain::from(data[done..].to_vec());
        let written = tree.write(caller, node, at + done as u64, chain, Stability::Unstable).await?;
        assert!(written.len > 0, "at least one byte");
        done += written.len;
    }
    Ok(())
}

/// `len` bytes whose values depend on their position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at / 4096) as u8).collect()
}
