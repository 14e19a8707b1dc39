// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"
	"time"

	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/watch"
)

// stopWatching is how long the streams of state may take to say that conch stops.
const stopWatching = 2 * time.Second

// newWatchers makes the stream of state of what operators see.
func (s *server) newWatchers(conch admin.API) *watch.Hub {
	return watch.New(watch.Options{
		Sources: admin.Sources(conch), Epoch: strconv.FormatInt(time.Now().UnixMicro(), 36), Now: time.Now, Logger: s.log.With("part", "watch"),
	})
}
