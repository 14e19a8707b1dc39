// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// pause holds a Pod's namespaces until it is asked to end.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
}
