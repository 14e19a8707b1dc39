// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"strings"

	"github.com/conch-serving/conch/internal/triton/tritonjson"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/guard"
)

// guarded denies settings and regions that would make a server touch files or memory that are not the caller's. A body
// that is no JSON object is left to the server.
func guarded(path string, body []byte) error {
	if len(body) == 0 {
		return nil
	}
	doc, err := tritonjson.Parse(body)
	if err != nil {
		return nil // the server denies it with its own text
	}
	deny := guard.LogSetting
	switch {
	case strings.HasPrefix(path, "/v2/systemsharedmemory/") && strings.HasSuffix(path, "/register"):
		return guardedRegion(doc.Root())
	case strings.HasSuffix(path, "/trace/setting"):
		deny = guard.TraceSetting
	case path != "/v2/logging":
		return nil
	}
	for name := range doc.Root().Members() {
		if err := deny(cString(name)); err != nil {
			return err
		}
	}
	return nil
}

// guardedRegion checks what the server will use: the first members of these names, numbers as unsigned.
func guardedRegion(root tritonjson.Value) error {
	var key string
	if v, ok := root.Find("key"); ok {
		key, _ = v.AsString() // what is no string is denied by the server
	}
	number := func(name string) uint64 {
		v, _ := root.Find(name)
		n, _ := v.AsUint()
		return n
	}
	return guard.Region(key, number("offset"), number("byte_size"))
}
