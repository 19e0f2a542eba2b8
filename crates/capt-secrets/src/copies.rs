//! The three Secrets that this controller makes.

use capt_api::names;

/// One of the copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// The kubeconfig Secret of Cluster API's contract.
    Kubeconfig,
    /// The CA certificate.
    Ca,
    /// The same kubeconfig under a second name. A convenience: nothing waits for it.
    Alias,
}

impl Which {
    /// What Cluster API needs comes first.
    pub(crate) const ALL: [Self; 3] = [Self::Kubeconfig, Self::Ca, Self::Alias];

    /// Without these the cluster cannot be used.
    pub(crate) const REQUIRED: [Self; 2] = [Self::Kubeconfig, Self::Ca];

    pub(crate) fn name(self, cluster: &str) -> String {
        match self {
            Self::Kubeconfig => names::kubeconfig_secret(cluster),
            Self::Ca => names::ca_secret(cluster),
            Self::Alias => names::kubeconfig_alias_secret(cluster),
        }
    }
}

/// One thing for each copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PerCopy<T> {
    pub(crate) kubeconfig: T,
    pub(crate) ca: T,
    pub(crate) alias: T,
}

impl<T> PerCopy<T> {
    pub(crate) fn of(&self, which: Which) -> &T {
        match which {
            Which::Kubeconfig => &self.kubeconfig,
            Which::Ca => &self.ca,
            Which::Alias => &self.alias,
        }
    }

    pub(crate) fn build(mut make: impl FnMut(Which) -> T) -> Self {
        Self {
            kubeconfig: make(Which::Kubeconfig),
            ca: make(Which::Ca),
            alias: make(Which::Alias),
        }
    }

    pub(crate) fn set(&mut self, which: Which, value: T) {
        match which {
            Which::Kubeconfig => self.kubeconfig = value,
            Which::Ca => self.ca = value,
            Which::Alias => self.alias = value,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Which, &T)> {
        Which::ALL.into_iter().map(|which| (which, self.of(which)))
    }
}

/// The Cluster whose own kubeconfig Secret has the name of this Cluster's alias, if there is such a Cluster: the alias
/// would take the place of what Cluster API reads for that one.
pub(crate) fn rival(cluster: &str) -> Option<String> {
    let alias = Which::Alias.name(cluster);
    let rival = alias.strip_suffix("-kubeconfig")?;
    (names::kubeconfig_secret(rival) == alias).then(|| rival.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rival_is_the_cluster_whose_kubeconfig_the_alias_would_be() {
        assert_eq!(rival("demo").as_deref(), Some("demo-control-plane"));
        for length in [1, 63, 220, 230, 240, 253] {
            let cluster = "x".repeat(length);
            let rival = rival(&cluster).unwrap();
            assert_eq!(Which::Kubeconfig.name(&rival), Which::Alias.name(&cluster), "{length}");
            assert_ne!(rival, cluster);
        }
    }
}
