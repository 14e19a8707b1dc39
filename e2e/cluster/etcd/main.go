// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// etcd is the store of the test cluster's API server.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
