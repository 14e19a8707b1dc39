// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// statusOfRegions reports whether a path asks for shared-memory regions. The answer may name Conch's own.
func statusOfRegions(path string) bool {
	return strings.HasPrefix(path, "/v2/systemsharedmemory/") && strings.HasSuffix(path, "/status")
}

// withoutLent removes from a list of regions those that Conch shares with the server, which clients must not see. Any
// other body is returned unchanged.
func withoutLent(body []byte) []byte {
	var regions []json.RawMessage
	if !bytes.Contains(body, []byte(batch.LentPrefix)) || json.Unmarshal(body, &regions) != nil {
		return body
	}
	kept := []byte{'['}
	for _, region := range regions {
		var named struct {
			Name string `json:"name"`
		}
		if json.Unmarshal(region, &named) == nil && batch.LentRegion(named.Name) {
			continue
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(kept, region...)
	}
	return append(kept, ']')
}
