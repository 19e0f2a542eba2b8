//go:build tools

// Package tools pins the programs of this group; nothing imports it.
package tools

import _ "go.etcd.io/etcd/server/v3"
