//! Permissions as data. Each controller declares its rules beside its code, with the reason of each; Roles for tests,
//! environments and the chart are made from the same rules, so they cannot drift apart.

use std::fmt::Write;

use k8s_openapi::{
    api::rbac::v1::{ClusterRole, PolicyRule, Role},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// One permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub groups: &'static [&'static str],
    pub resources: &'static [&'static str],
    /// Objects of these names only; of all names if empty.
    pub names: &'static [&'static str],
    pub verbs: &'static [&'static str],
    /// Which code needs it, and what for.
    pub why: &'static str,
}

/// What every controller needs in its own namespace to make its Lease. A name does not narrow a create.
const MAKE_LEASE: Rule = Rule {
    groups: &["coordination.k8s.io"],
    resources: &["leases"],
    names: &[],
    verbs: &["create"],
    why: "leader election: one replica works, the others stand by",
};

/// And to hold it; only its own, because whoever writes another's can stop that controller.
const HOLD_LEASE: Rule = Rule {
    verbs: &["get", "update"],
    why: "the Lease of its own name, and no other controller's",
    ..MAKE_LEASE
};

/// What a controller needs in its own namespace, where its Lease has its name.
pub const OWN_NAMESPACE: &[Rule] = &[MAKE_LEASE, HOLD_LEASE];

/// What every controller needs wherever its objects are.
pub const EVERYWHERE: &[Rule] = &[Rule {
    groups: &["events.k8s.io"],
    resources: &["events"],
    names: &[],
    verbs: &["create"],
    why: "one Event per transition of an object",
}];

/// What belongs to no namespace among the things that rules are about: group and resource.
const CLUSTER_SCOPED: &[(&str, &str)] = &[
    ("tf.upbound.io", "workspaces"),
    ("multitenancy.capt.dev", "tenants"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

/// Divides rules for an installation in one namespace: what a Role there grants, and what only a ClusterRole can, because
/// it belongs to no namespace.
pub fn in_one_namespace(rules: &[Rule]) -> (Vec<Rule>, Vec<Rule>) {
    rules.iter().copied().partition(|rule| !rule.is_cluster_scoped())
}

impl Rule {
    /// Whether it is about something that belongs to no namespace. A rule is about one or the other, never both.
    fn is_cluster_scoped(&self) -> bool {
        self.groups
            .iter()
            .flat_map(|group| self.resources.iter().map(move |resource| (*group, *resource)))
            .any(|thing| CLUSTER_SCOPED.contains(&thing))
    }

    fn policy(&self) -> PolicyRule {
        let owned = |words: &[&str]| Some(words.iter().map(ToString::to_string).collect());
        PolicyRule {
            api_groups: owned(self.groups),
            resources: owned(self.resources),
            resource_names: owned(self.names).filter(|names: &Vec<String>| !names.is_empty()),
            verbs: self.verbs.iter().map(ToString::to_string).collect(),
            ..PolicyRule::default()
        }
    }
}

/// For controllers that work in all namespaces.
pub fn cluster_role(name: &str, rules: &[Rule]) -> ClusterRole {
    ClusterRole {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        rules: Some(rules.iter().map(Rule::policy).collect()),
        ..ClusterRole::default()
    }
}

/// For one namespace.
pub fn role(namespace: &str, name: &str, rules: &[Rule]) -> Role {
    Role {
        metadata: ObjectMeta {
            name: Some(name.into()),
            namespace: Some(namespace.into()),
            ..ObjectMeta::default()
        },
        rules: Some(rules.iter().map(Rule::policy).collect()),
    }
}

/// What a controller of this name may do in its own namespace.
pub fn own_namespace_role(namespace: &str, name: &str) -> Role {
    let hold = PolicyRule {
        resource_names: Some(vec![name.to_owned()]),
        ..HOLD_LEASE.policy()
    };
    Role {
        rules: Some(vec![MAKE_LEASE.policy(), hold]),
        ..role(namespace, name, &[])
    }
}

/// The same as YAML, for [`yaml`]'s readers.
pub fn own_namespace_yaml(name: &str) -> String {
    yaml(&[MAKE_LEASE]) + &yaml_for(&[HOLD_LEASE], &[name])
}

/// As [`yaml`], for objects of these names only.
pub fn yaml_for(rules: &[Rule], names: &[&str]) -> String {
    let names: String = names.iter().map(|name| format!("    - {name}\n")).collect();
    let narrowed = |rule| format!("{}  resourceNames:\n{names}", yaml(std::slice::from_ref(rule)));
    rules.iter().map(narrowed).collect()
}

/// The list below `rules:` as YAML, with the reason above each rule, for files that people read.
pub fn yaml(rules: &[Rule]) -> String {
    let mut text = String::new();
    for rule in rules {
        let list = |words: &[&str]| {
            let quoted: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
            format!("[{}]", quoted.join(", "))
        };
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "# {}\n- apiGroups: {}\n  resources: {}\n  verbs: {}\n",
            rule.why,
            list(rule.groups),
            list(rule.resources),
            list(rule.verbs),
        );
        if !rule.names.is_empty() {
            let _ = writeln!(text, "  resourceNames: {}", list(rule.names));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_carries_the_reason_above_the_rule() {
        assert_eq!(
            own_namespace_yaml("capt-test"),
            "# leader election: one replica works, the others stand by\n\
             - apiGroups: [\"coordination.k8s.io\"]\n  resources: [\"leases\"]\n  verbs: [\"create\"]\n\
             # the Lease of its own name, and no other controller's\n\
             - apiGroups: [\"coordination.k8s.io\"]\n  resources: [\"leases\"]\n  verbs: [\"get\", \"update\"]\n  \
             resourceNames:\n    - capt-test\n"
        );
    }

    #[test]
    fn what_belongs_to_no_namespace_is_set_apart() {
        let rule = |groups, resources| Rule {
            groups,
            resources,
            names: &[],
            verbs: &["get"],
            why: "",
        };
        let (tf, tf_m) = (
            rule(&["tf.upbound.io"], &["workspaces"]),
            rule(&["tf.m.upbound.io"], &["workspaces"]),
        );
        let reviews = rule(&["authentication.k8s.io"], &["tokenreviews"]);
        let rules = [OWN_NAMESPACE[0], tf, tf_m, reviews];
        assert_eq!(
            in_one_namespace(&rules),
            (vec![OWN_NAMESPACE[0], tf_m], vec![tf, reviews])
        );
    }

    #[test]
    fn roles_hold_exactly_the_rules() {
        let role = own_namespace_role("capt-system", "capt-test");
        assert_eq!(role.metadata.namespace.as_deref(), Some("capt-system"));
        let rules = role.rules.unwrap();
        assert_eq!(rules.len(), 2);
        assert_eq!(
            (&rules[0].verbs, &rules[0].resource_names),
            (&vec!["create".into()], &None)
        );
        assert_eq!(rules[1].verbs, ["get", "update"]);
        assert_eq!(rules[1].resource_names, Some(vec!["capt-test".into()]));
        assert_eq!(
            cluster_role("capt-test", EVERYWHERE).rules.unwrap()[0].resources,
            Some(vec!["events".to_string()])
        );
    }
}
