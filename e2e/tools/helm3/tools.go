//go:build tools

// Package tools pins the programs of this group; nothing imports it.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
