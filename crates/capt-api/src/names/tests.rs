use proptest::prelude::*;

use super::*;

fn is_dns_label(name: &str) -> bool {
    name.len() <= 63
        && !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn is_object_name(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|part| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                && !part.starts_with('-')
                && !part.ends_with('-')
        })
}

fn is_valid_label_value(value: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_alphanumeric();
    value.is_empty()
        || value.len() <= 63
            && value.bytes().all(|b| alphanumeric(b) || b"-_.".contains(&b))
            && alphanumeric(value.as_bytes()[0])
            && alphanumeric(value.as_bytes()[value.len() - 1])
}

#[test]
fn managers_are_the_crates_names() {
    let names: Vec<_> = Manager::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(
        names,
        [
            "capt-cluster-controller",
            "capt-controlplane-controller",
            "capt-endpoint",
            "capt-secrets",
            "capt-tenant-controller",
            "capt-workspace-controller"
        ]
    );
}

#[test]
fn names_of_the_objects_that_capt_makes() {
    assert_eq!(vpc_apply_name("demo"), "demo-vpc");
    assert_eq!(vpc_connection_secret("demo"), "demo-vpc-connection");
    assert_eq!(eks_apply_name("demo-cp"), "demo-cp-eks-controlplane-apply");
    assert_eq!(eks_connection_secret("demo"), "demo-eks-connection");
    assert_eq!(kubeconfig_secret("demo"), "demo-kubeconfig");
    assert_eq!(kubeconfig_alias_secret("demo"), "demo-control-plane-kubeconfig");
    assert_eq!(ca_secret("demo"), "demo-ca");
}

/// A change of these would make every controller lose the Workspaces it made, and Terraform their state.
#[test]
fn workspace_names_never_change() {
    assert_eq!(
        workspace_name("default", "demo-vpc"),
        "default-demo-vpc-dpae32sofzaagjwp"
    );
    assert_eq!(
        workspace_name(
            "team.a",
            "a.very.long.name.that.leaves.no.room.for.all.of.it.in.a.label"
        ),
        "team-a-a-very-long-name-that-leaves-no-room-fo-bk66ehlbnaxbimq3"
    );
    // Uppercase and other odd characters do not occur in names, but must not break one either.
    assert_eq!(workspace_name("-A_b", "é"), "a-b-rdn3jtwhbm6w5axg");
}

#[test]
fn a_name_without_room_is_cut_and_hashed() {
    let longest_that_fits = "a".repeat(249);
    assert_eq!(vpc_apply_name(&longest_that_fits), format!("{longest_that_fits}-vpc"));

    let too_long = "a".repeat(250);
    assert_eq!(
        vpc_apply_name(&too_long),
        format!("{}-h47dlyfhoxm3dvpm-vpc", "a".repeat(232))
    );

    // The cut falls behind a dot, where a name part may not end.
    let dotted = format!("{}.{}", "a".repeat(231), "b".repeat(20));
    assert_eq!(
        vpc_apply_name(&dotted),
        format!("{}-jnblg3mztrh26uc3-vpc", "a".repeat(231))
    );
}

#[test]
fn label_values() {
    assert_eq!(label_value("demo.example"), "demo.example");
    assert_eq!(label_value(&"a".repeat(63)), "a".repeat(63));
    assert_eq!(
        label_value(&"a".repeat(64)),
        format!("{}_77qfj7t24dfw3rs4", "a".repeat(46))
    );
    assert_eq!(label_value("not/valid"), "not-valid_pd7cukv4rgqsrl67");
    assert_eq!(label_value("///"), "x_omwe5fyrmopncq3n");
}

#[test]
fn a_value_that_imitates_a_hashed_one_is_hashed_itself() {
    let hashed = label_value(&"a".repeat(64));
    assert_ne!(label_value(&hashed), hashed);
}

#[test]
fn names_that_read_the_same_are_different() {
    for (one, other) in [
        (("a-b", "c"), ("a", "b-c")),
        (("a", "b.c"), ("a", "b-c")),
        (("a", "b"), ("a-b", "")),
        (("ns", "x"), ("ns", "x-apply")),
    ] {
        assert_ne!(
            workspace_name(one.0, one.1),
            workspace_name(other.0, other.1),
            "{one:?} {other:?}"
        );
    }
    let (long, longer) = ("n".repeat(200), "n".repeat(201));
    assert_ne!(workspace_name("ns", &long), workspace_name("ns", &longer));
}

fn namespace() -> impl Strategy<Value = String> {
    "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
}

fn object_name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?){0,2}",
        "[a-z0-9]([a-z0-9.]{0,1}[a-z0-9]){0,125}[a-z0-9]",
        "[a-z0-9][a-z0-9-]{230,251}[a-z0-9]",
    ]
}

proptest! {
    #[test]
    fn workspace_names_are_labels(namespace in namespace(), name in object_name()) {
        let workspace = workspace_name(&namespace, &name);
        prop_assert!(is_dns_label(&workspace), "{}", workspace);
        prop_assert!(is_valid_label_value(&workspace));
    }

    /// The same characters divided differently between namespace and name, which is what the readable part cannot tell.
    #[test]
    fn workspace_names_do_not_collide(text in "[a-z0-9][a-z0-9-]{1,40}[a-z0-9]", one in 1usize..40, other in 1usize..40) {
        let split = |at: usize| text.split_at(at.min(text.len() - 1));
        let (one, other) = (split(one), split(other));
        prop_assume!(one != other);
        prop_assert_ne!(workspace_name(one.0, one.1), workspace_name(other.0, other.1));
    }

    #[test]
    fn distinct_applies_have_distinct_workspaces(
        applies in prop::collection::hash_set((namespace(), object_name()), 2..20)
    ) {
        let names: std::collections::HashSet<_> = applies.iter().map(|(ns, name)| workspace_name(ns, name)).collect();
        prop_assert_eq!(names.len(), applies.len());
    }

    #[test]
    fn derived_names_are_object_names_and_distinct(one in object_name(), other in object_name()) {
        for derive in [
            vpc_apply_name, eks_apply_name, vpc_connection_secret, eks_connection_secret, kubeconfig_secret,
            kubeconfig_alias_secret, ca_secret,
        ] {
            prop_assert!(is_object_name(&derive(&one)), "{}", derive(&one));
            prop_assert_eq!(one == other, derive(&one) == derive(&other));
        }
    }

    #[test]
    fn label_values_are_valid_and_distinct(one in "\\PC{0,80}", other in "\\PC{0,80}") {
        prop_assert!(is_valid_label_value(&label_value(&one)), "{}", label_value(&one));
        prop_assert_eq!(one == other, label_value(&one) == label_value(&other));
    }

    /// The output of one value, taken as a value, never gets the label of another.
    #[test]
    fn label_values_cannot_be_imitated(value in "[a-z./]{0,80}") {
        let label = label_value(&value);
        prop_assert_eq!(label == value, label_value(&label) == label);
    }
}
