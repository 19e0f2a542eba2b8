//go:build tools

// Package tools pins the programs of this group; nothing imports it.
package tools

import (
	_ "sigs.k8s.io/cluster-api/cmd/clusterctl"
	_ "sigs.k8s.io/cluster-api/core"
)
