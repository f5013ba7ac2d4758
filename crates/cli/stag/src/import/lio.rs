//! Reads the JSON that targetcli and targetctl save of LIO: storage objects, and the targets that
//! map them.

use std::fs;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Acl, Chap, Imported, Target, Unit};

/// IEEE company of LIO's worldwide names, behind NAA 6.
const COMPANY: &str = "6001405";
/// Hexadecimal digits of the unit's serial number in its worldwide name.
const DIGITS: usize = 25;

/// Attributes and parameters of a portal group that are carried over, follow from those, or belong
/// to markers, which no initiator has.
const CARRIED: [&str; 7] = [
    "authentication",
    "generate_node_acls",
    "demo_mode_write_protect",
    "cache_dynamic_acls",
    "AuthMethod",
    "IFMarkInt",
    "OFMarkInt",
];
/// The others that have a value from the beginning, each with it. targetcli saves them all.
const USUAL: [(&str, &str); 27] = [
    ("default_cmdsn_depth", "64"),
    ("default_erl", "0"),
    ("demo_mode_discovery", "1"),
    ("fabric_prot_type", "0"),
    ("login_keys_workaround", "1"),
    ("login_timeout", "15"),
    ("netif_timeout", "2"),
    ("prod_mode_write_protect", "0"),
    ("t10_pi", "0"),
    ("tpg_enabled_sendtargets", "1"),
    ("DataDigest", "CRC32C,None"),
    ("DataPDUInOrder", "Yes"),
    ("DataSequenceInOrder", "Yes"),
    ("DefaultTime2Retain", "20"),
    ("DefaultTime2Wait", "2"),
    ("ErrorRecoveryLevel", "0"),
    ("FirstBurstLength", "65536"),
    ("HeaderDigest", "CRC32C,None"),
    ("IFMarker", "No"),
    ("ImmediateData", "Yes"),
    ("InitialR2T", "Yes"),
    ("MaxBurstLength", "262144"),
    ("MaxConnections", "1"),
    ("MaxOutstandingR2T", "1"),
    ("MaxRecvDataSegmentLength", "8192"),
    ("MaxXmitDataSegmentLength", "262144"),
    ("OFMarker", "No"),
];

#[derive(Deserialize)]
struct Saved {
    #[serde(default)]
    fabric_modules: Vec<Fabric>,
    #[serde(default)]
    storage_objects: Vec<Object>,
    #[serde(default)]
    targets: Vec<Served>,
}

/// CHAP as LIO names it, with or without the prefix of discovery.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Keys {
    #[serde(alias = "discovery_userid")]
    chap_userid: String,
    #[serde(alias = "discovery_password")]
    chap_password: String,
    #[serde(alias = "discovery_mutual_userid")]
    chap_mutual_userid: String,
    #[serde(alias = "discovery_mutual_password")]
    chap_mutual_password: String,
}

#[derive(Deserialize)]
struct Fabric {
    #[serde(default)]
    name: String,
    /// A truth value or a number.
    #[serde(default)]
    discovery_enable_auth: Value,
    #[serde(flatten)]
    keys: Keys,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object {
    plugin: String,
    name: String,
    dev: String,
    /// What tcmu-runner serves: `rbd/POOL/IMAGE;KEY=VALUE…` of an image of Ceph.
    config: String,
    size: u64,
    write_back: bool,
    readonly: bool,
    /// Its unit serial number.
    wwn: String,
    attributes: Map<String, Value>,
}

#[derive(Deserialize)]
struct Served {
    #[serde(default)]
    fabric: String,
    wwn: String,
    #[serde(default)]
    tpgs: Vec<Group>,
}

/// A target portal group.
#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    tag: u16,
    #[serde(default)]
    enable: bool,
    #[serde(default)]
    attributes: Map<String, Value>,
    /// The keys that it negotiates.
    #[serde(default)]
    parameters: Map<String, Value>,
    #[serde(default)]
    luns: Vec<Lun>,
    #[serde(default)]
    node_acls: Vec<Node>,
    #[serde(default)]
    portals: Vec<Portal>,
    #[serde(flatten)]
    keys: Keys,
}

#[derive(Deserialize)]
struct Lun {
    index: u16,
    /// `/backstores/PLUGIN/NAME`.
    storage_object: String,
    #[serde(default)]
    alua_tg_pt_gp_name: String,
}

#[derive(Deserialize)]
struct Node {
    node_wwn: String,
    #[serde(default)]
    attributes: Map<String, Value>,
    #[serde(default)]
    mapped_luns: Vec<Mapped>,
    #[serde(flatten)]
    keys: Keys,
}

#[derive(Deserialize)]
struct Mapped {
    index: u16,
    tpg_lun: u16,
    #[serde(default)]
    write_protect: bool,
}

#[derive(Deserialize)]
struct Portal {
    ip_address: String,
    port: u16,
}

impl Keys {
    /// `None` without a user.
    fn chap(&self) -> Option<Chap> {
        let pair =
            |name: &String, secret: &String| (!name.is_empty()).then(|| (name.clone(), secret.clone()));
        let user = pair(&self.chap_userid, &self.chap_password)?;
        Some(Chap { users: vec![user], mutual: pair(&self.chap_mutual_userid, &self.chap_mutual_password) })
    }
}

/// A number of LIO's, which older versions save as text, or a truth value.
fn number(value: &Value) -> Option<i64> {
    let text = || value.as_str()?.trim().parse().ok();
    value.as_i64().or_else(text).or_else(|| value.as_bool().map(i64::from))
}

/// Whether an attribute is set. One that is missing, or is neither 0 nor 1, has the kernel's value,
/// `usual`.
fn is_set(attributes: &Map<String, Value>, name: &str, usual: bool) -> bool {
    match attributes.get(name).and_then(number) {
        Some(0) => false,
        Some(1) => true,
        _ => usual,
    }
}

impl Node {
    /// Whether the initiator has to prove who it is: as `group` has it, unless its own attribute
    /// says otherwise. There -1 is the group's.
    fn authenticates(&self, group: bool) -> bool {
        is_set(&self.attributes, "authentication", group)
    }
}

pub(super) fn read(text: &str) -> Result<Imported, String> {
    let saved: Saved = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut imported = Imported::default();
    for fabric in &saved.fabric_modules {
        if fabric.name == "iscsi" && number(&fabric.discovery_enable_auth).is_some_and(|number| number != 0) {
            imported.discovery = fabric.keys.chap();
            if imported.discovery.is_none() {
                imported.note("discovery demands CHAP and has no user: now everybody may ask for targets");
            }
        }
    }
    for served in &saved.targets {
        if served.fabric != "iscsi" {
            imported.note(format!("{} of the fabric {}: Stag serves iSCSI", served.wwn, served.fabric));
            continue;
        }
        let mut groups = served.tpgs.iter().filter(|group| group.enable);
        let Some(group) = groups.next() else {
            imported.note(format!("{}: it is disabled", served.wwn));
            continue;
        };
        if let Some(target) = target(&served.wwn, group, &saved.storage_objects, &mut imported) {
            imported.targets.push(target);
        }
        groups.for_each(|other| {
            imported.note(format!(
                "{}: its portal group {}; Stag's portal groups share units and ACLs",
                served.wwn, other.tag
            ));
        });
    }
    Ok(imported)
}

fn target(iqn: &str, group: &Group, objects: &[Object], imported: &mut Imported) -> Option<Target> {
    let authenticates = is_set(&group.attributes, "authentication", true);
    let open = is_set(&group.attributes, "generate_node_acls", false);
    if group.node_acls.is_empty() && !open {
        imported.note(format!("{iqn}: nobody may log in to it, for it has no ACLs"));
        return None;
    }
    for (kind, values) in [("attribute", &group.attributes), ("parameter", &group.parameters)] {
        for (name, value) in values.iter().filter(|(name, _)| !CARRIED.contains(&name.as_str())) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if !USUAL.contains(&(name.as_str(), value.as_str())) {
                imported.note(format!("{iqn}: the {kind} {name}"));
            }
        }
    }
    let mut target = Target { iqn: iqn.to_owned(), ..Target::default() };
    target.portals = group.portals.iter().map(|portal| address(&portal.ip_address, portal.port)).collect();
    for lun in &group.luns {
        if !matches!(lun.alua_tg_pt_gp_name.as_str(), "" | "default_tg_pt_gp") {
            imported.note(format!("{iqn} LUN {}: its ALUA group {}", lun.index, lun.alua_tg_pt_gp_name));
        }
        let named =
            |object: &&Object| lun.storage_object == format!("/backstores/{}/{}", object.plugin, object.name);
        match objects.iter().find(named).map(|object| unit(lun.index, object)) {
            Some(Ok(unit)) => target.units.push(unit),
            Some(Err(what)) => imported.note(format!("{iqn} LUN {}: {what}", lun.index)),
            None => imported.note(format!("{iqn} LUN {}: there is no {}", lun.index, lun.storage_object)),
        }
    }
    target.units.sort_by_key(|unit| unit.lun);
    let there: Vec<u16> = target.units.iter().map(|unit| unit.lun).collect();
    for node in &group.node_acls {
        let (auth, authenticates) = (node.keys.chap(), node.authenticates(authenticates));
        if authenticates && auth.is_none() {
            imported.note(format!(
                "{iqn}: the ACL of {}, which has no CHAP user and cannot log in",
                node.node_wwn
            ));
            continue;
        }
        let mapped = node.mapped_luns.iter().filter(|mapped| there.contains(&mapped.tpg_lun));
        target.acls.push(Acl {
            initiator: node.node_wwn.clone(),
            auth: auth.filter(|_| authenticates),
            luns: Some(mapped.map(|mapped| (mapped.tpg_lun, mapped.index, mapped.write_protect)).collect()),
            read_only: false,
        });
    }
    match open.then(|| group.keys.chap()) {
        // Demonstration mode: everybody sees all units.
        Some(auth) if !authenticates || auth.is_some() => {
            target.auth = auth.filter(|_| authenticates);
            let read_only = is_set(&group.attributes, "demo_mode_write_protect", true);
            if read_only || !target.acls.is_empty() {
                target.acls.push(Acl { initiator: "*".to_owned(), read_only, ..Acl::default() });
            }
        }
        _ if target.acls.is_empty() => {
            imported.note(format!("{iqn}: nobody may log in to it, for it demands CHAP and has no user"));
            return None;
        }
        _ => {}
    }
    Some(target)
}

/// `[::0]` and `::0` are both found.
fn address(ip: &str, port: u16) -> String {
    let bare = ip.trim_start_matches('[').trim_end_matches(']');
    if bare.contains(':') { format!("[{bare}]:{port}") } else { format!("{bare}:{port}") }
}

fn unit(lun: u16, object: &Object) -> Result<Unit, String> {
    let (path, product) = match object.plugin.as_str() {
        "fileio" => (object.dev.clone(), "FILEIO"),
        "block" => (object.dev.clone(), "IBLOCK"),
        "ramdisk" => (format!("mem:{}", object.size), "RAMDISK-MCP"),
        "user" if object.config.starts_with("rbd/") => {
            (object.config.split(';').next().unwrap_or_default().replacen('/', ":", 1), "TCMU device")
        }
        other => {
            return Err(format!(
                "the storage object {} of {other}; Stag has files, block devices, memory and images of Ceph",
                object.name
            ));
        }
    };
    let mut options: Vec<(&'static str, toml::Value)> = Vec::new();
    if object.plugin == "fileio" {
        options.push(("cache", if object.write_back { "writeback" } else { "writethrough" }.into()));
        // Linux serves the size that is saved, however long the file is.
        if fs::metadata(&object.dev).is_ok_and(|file| file.is_file() && file.len() != object.size) {
            options.push(("size", object.size.to_string().into()));
        }
    }
    for (key, option) in [("id=", "ceph-user"), ("conf=", "ceph-conf")] {
        if let Some(value) = object.config.split(';').find_map(|given| given.strip_prefix(key)) {
            options.push((option, value.into()));
        }
    }
    match object.attributes.get("block_size").and_then(number) {
        None | Some(0 | 512) => {}
        Some(4096) => options.push(("bs", 4096.into())),
        Some(other) => return Err(format!("it has blocks of {other} bytes; Stag's have 512 or 4096")),
    }
    if object.readonly {
        options.push(("ro", true.into()));
    }
    let unmaps = ["emulate_tpu", "emulate_tpws"].iter().any(|name| is_set(&object.attributes, name, false));
    if unmaps || object.plugin == "user" {
        options.push(("thin", true.into()));
    }
    // The kernel takes the digits as they come, and leaves out all else.
    let digits: String = object.wwn.chars().filter(char::is_ascii_hexdigit).take(DIGITS).collect();
    if !object.wwn.is_empty() {
        options.push(("serial", object.wwn.as_str().into()));
        options.push(("naa", format!("{COMPANY}{digits:0<DIGITS$}").to_ascii_lowercase().into()));
    }
    // tcmu-runner answers INQUIRY itself.
    let named = object.plugin != "user" && is_set(&object.attributes, "emulate_model_alias", false);
    let product: String = if named { object.name.chars().take(16).collect() } else { product.to_owned() };
    options.push(("vendor", "LIO-ORG".into()));
    options.push(("product", product.into()));
    options.push(("revision", if object.plugin == "user" { "0002" } else { "4.0" }.into()));
    Ok(Unit { lun, path, options })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target as targetcli saves it, with changes to its portal group.
    fn saved(attributes: &str, nodes: &str, more: &str) -> String {
        format!(
            r#"{{"fabric_modules": [{{"name": "iscsi", "discovery_enable_auth": true, "discovery_userid": "who", "discovery_password": "asks for targets"}}],
              "storage_objects": [
                {{"plugin": "fileio", "name": "web", "dev": "/srv/web.img", "size": 1048576, "write_back": false,
                 "wwn": "5d7e1c8a-0f3b-4c2d-9e6f-a1b2c3d4e5f6", "attributes": {{"block_size": 4096, "emulate_model_alias": 1, "emulate_tpu": "1"}}}},
                {{"plugin": "block", "name": "db", "dev": "/dev/vg/db", "readonly": true, "wwn": "xyz-1", "attributes": {{"block_size": 512}}}},
                {{"plugin": "user", "name": "rbd.disk_1", "config": "rbd/rbd/disk_1;osd_op_timeout=30;id=gw;conf=/etc/ceph/b.conf", "size": 1048576,
                 "wwn": "01234567-89ab-4def-8123-456789abcdef", "attributes": {{"emulate_tpu": 0, "emulate_model_alias": 1}}}},
                {{"plugin": "user", "name": "glfs", "config": "glfs/volume", "attributes": {{}}}},
                {{"plugin": "pscsi", "name": "tape", "dev": "/dev/st0", "attributes": {{}}}}],
              "targets": [{{"fabric": "iscsi", "wwn": "iqn.2003-01.org.linux-iscsi.host:t", "tpgs": [{{"tag": 1, "enable": true,
                "attributes": {{{attributes}}}, "node_acls": [{nodes}],
                "luns": [{{"index": 0, "storage_object": "/backstores/fileio/web", "alua_tg_pt_gp_name": "default_tg_pt_gp"}},
                         {{"index": 1, "storage_object": "/backstores/block/db"}}, {{"index": 2, "storage_object": "/backstores/pscsi/tape"}},
                         {{"index": 3, "storage_object": "/backstores/user/rbd.disk_1", "alua_tg_pt_gp_name": "ao"}},
                         {{"index": 4, "storage_object": "/backstores/user/glfs"}}],
                "portals": [{{"ip_address": "[::0]", "port": 3260, "iser": false}}, {{"ip_address": "192.0.2.1", "port": 3261}}]{more}}}]}},
               {{"fabric": "vhost", "wwn": "naa.5001405", "tpgs": []}}]}}"#
        )
    }

    const NODE: &str = r#"{"node_wwn": "iqn.1994-05.com.redhat:a", "chap_userid": "a", "chap_password": "a secret of its own",
        "mapped_luns": [{"index": 5, "tpg_lun": 0, "write_protect": true}, {"index": 2, "tpg_lun": 2}]}"#;

    #[test]
    fn units_keep_the_names_that_the_kernel_gives_them() {
        let imported = read(&saved(r#""authentication": 1"#, NODE, "")).unwrap();
        let target = &imported.targets[0];
        let options = |at: usize| {
            target.units[at]
                .options
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            options(0),
            "cache=\"writethrough\" bs=4096 thin=true serial=\"5d7e1c8a-0f3b-4c2d-9e6f-a1b2c3d4e5f6\" \
             naa=\"60014055d7e1c8a0f3b4c2d9e6fa1b2c\" vendor=\"LIO-ORG\" product=\"web\" revision=\"4.0\""
        );
        assert_eq!(
            options(1),
            "ro=true serial=\"xyz-1\" naa=\"60014051000000000000000000000000\" vendor=\"LIO-ORG\" product=\"IBLOCK\" revision=\"4.0\""
        );
        assert_eq!(target.units[2].path, "rbd:rbd/disk_1");
        assert_eq!(
            options(2),
            "ceph-user=\"gw\" ceph-conf=\"/etc/ceph/b.conf\" thin=true serial=\"01234567-89ab-4def-8123-456789abcdef\" \
             naa=\"60014050123456789ab4def812345678\" vendor=\"LIO-ORG\" product=\"TCMU device\" revision=\"0002\""
        );
        assert_eq!(target.portals, ["[::0]:3260", "192.0.2.1:3261"]);
        assert_eq!(imported.discovery.unwrap().users[0].0, "who");
        let notes = imported.notes.join("\n");
        assert!(["pscsi", "vhost", "glfs", "ao"].iter().all(|what| notes.contains(what)), "{notes}");
    }

    #[test]
    fn a_file_of_another_length_has_the_size_that_was_served() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let dev = file.path().display().to_string();
        let object = Object { plugin: "fileio".to_owned(), dev, size: 1 << 20, ..Object::default() };
        let size = || {
            let options = unit(0, &object).unwrap().options;
            options.into_iter().find(|(name, _)| *name == "size").map(|(_, size)| size.to_string())
        };
        assert_eq!(size().as_deref(), Some("\"1048576\""));
        file.as_file().set_len(1 << 20).unwrap();
        assert_eq!(size(), None);
    }

    #[test]
    fn acls_keep_their_numbers_rights_and_chap() {
        let imported = read(&saved(r#""authentication": 1"#, NODE, "")).unwrap();
        let acl = &imported.targets[0].acls[0];
        // Number 2 is a unit that Stag does not have.
        assert_eq!(acl.luns, Some(vec![(0, 5, true)]));
        assert_eq!(acl.auth.as_ref().unwrap().users, [("a".to_owned(), "a secret of its own".to_owned())]);
        let open = read(&saved(r#""authentication": 0"#, NODE, "")).unwrap();
        assert_eq!(open.targets[0].acls[0].auth, None);
        // An ACL may demand it where its group does not, and the other way round.
        for (group, own, demanded) in
            [(0, "1", true), (1, "0", false), (1, "-1", true), (0, "-1", false), (0, "\"1\"", true)]
        {
            let node = NODE.replacen('{', &format!(r#"{{"attributes": {{"authentication": {own}}}, "#), 1);
            let imported = read(&saved(&format!(r#""authentication": {group}"#), &node, "")).unwrap();
            assert_eq!(imported.targets[0].acls[0].auth.is_some(), demanded, "{group} {own}");
        }
    }

    #[test]
    fn no_target_becomes_more_open_than_it_was() {
        let targets = |attributes: &str, nodes: &str, more: &str| {
            read(&saved(attributes, nodes, more)).unwrap().targets
        };
        assert!(targets("", "", "").is_empty(), "without ACLs nobody may log in");
        let nameless = r#"{"node_wwn": "iqn.1994-05.com.redhat:a"}"#;
        assert!(
            targets(r#""authentication": 1"#, nameless, "").is_empty(),
            "without a secret nobody can prove anything"
        );
        assert!(targets(r#""authentication": 1, "generate_node_acls": 1"#, "", "").is_empty());
        // A group begins with authentication, and without demonstration mode.
        assert!(targets(r#""generate_node_acls": 1"#, "", "").is_empty());
        assert!(targets(r#""authentication": 0, "generate_node_acls": 2"#, "", "").is_empty());
        assert!(targets("", NODE, "")[0].acls[0].auth.is_some());
        // Demonstration mode: all units for everybody, read-only unless told otherwise.
        for protect in ["", r#", "demo_mode_write_protect": 1"#, r#", "demo_mode_write_protect": "1""#] {
            let demo = targets(&format!(r#""authentication": 0, "generate_node_acls": 1{protect}"#), "", "");
            assert!(demo[0].acls.len() == 1 && demo[0].acls[0].initiator == "*", "{protect}");
            assert!(demo[0].acls[0].read_only, "{protect}");
        }
        let writable = r#""authentication": 0, "generate_node_acls": 1, "demo_mode_write_protect": 0"#;
        let demo = targets(writable, "", "");
        assert!(demo[0].acls.is_empty() && demo[0].auth.is_none());
        let users = r#", "chap_userid": "all", "chap_password": "one for everybody""#;
        let demo = targets(
            r#""authentication": 1, "generate_node_acls": 1, "demo_mode_write_protect": 0"#,
            "",
            users,
        );
        assert_eq!(demo[0].auth.as_ref().unwrap().users[0].0, "all");
        let both = targets(r#""authentication": 0, "generate_node_acls": 1"#, NODE, "");
        assert_eq!(both[0].acls.iter().map(|acl| acl.read_only).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn settings_of_a_group_that_are_left_out_are_told_unless_every_group_has_them() {
        let attributes = r#""authentication": "1", "login_timeout": 15, "prod_mode_write_protect": 1"#;
        let more = r#", "parameters": {"AuthMethod": "CHAP", "MaxBurstLength": "262144", "ErrorRecoveryLevel": "2"}"#;
        let imported = read(&saved(attributes, NODE, more)).unwrap();
        let told: Vec<&str> = imported
            .notes
            .iter()
            .filter_map(|note| note.split_once(":t: the "))
            .map(|(_, what)| what)
            .collect();
        assert_eq!(told, ["attribute prod_mode_write_protect", "parameter ErrorRecoveryLevel"]);
        let nobody = saved("", NODE, "").replace(r#""discovery_userid": "who","#, "");
        let imported = read(&nobody).unwrap();
        assert!(imported.discovery.is_none() && imported.notes[0].starts_with("discovery demands CHAP"));
    }

    #[test]
    fn what_is_written_is_a_configuration() {
        let text = super::super::written::text(&read(&saved(r#""authentication": 1"#, NODE, "")).unwrap());
        let place = crate::config::Place::new(std::path::Path::new("/"));
        let (config, _) = crate::config::load_text("imported", &text, &place).unwrap();
        assert_eq!((config.targets[0].units.len(), config.portals.len()), (3, 2), "{text}");
        assert!(text.contains("# Not carried over: "), "{text}");
    }

    #[test]
    fn a_line_break_in_a_foreign_name_writes_no_line_of_the_configuration() {
        let text = saved(r#""authentication": 0, "generate_node_acls": 1"#, "", "")
            .replace("naa.5001405", "x\\n[[target]]\\niqn = 1");
        let imported = read(&text).unwrap();
        assert!(
            imported.notes.iter().any(|note| note.contains("x [[target]] iqn = 1")),
            "{:?}",
            imported.notes
        );
        let text = super::super::written::text(&imported);
        assert_eq!(text.lines().filter(|line| *line == "[[target]]").count(), 1, "{text}");
    }

    #[test]
    fn damaged_texts_are_refused() {
        for text in ["{", "{\"targets\": 1}", "{\"targets\": [{}]}"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read("{}").unwrap().targets.is_empty());
    }
}
