// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"slices"

	"github.com/conch-serving/conch/sidecar/apply/decide"
)

// fleet are the servers that there are, in the order in which they came, found by what they are asked for: a cluster has thousands.
type fleet struct {
	servers []*server
	byID    map[uint64]*server
	byKey   map[decide.Key][]*server
}

func (f *fleet) add(v *server) {
	if f.byID == nil {
		f.byID, f.byKey = map[uint64]*server{}, map[decide.Key][]*server{}
	}
	f.servers = append(f.servers, v)
	f.byID[v.ID], f.byKey[v.Key] = v, append(f.byKey[v.Key], v)
}

// remove takes a server away; nothing happens where it is not there any more.
func (f *fleet) remove(v *server) {
	if f.byID[v.ID] == nil {
		return
	}
	without := func(all []*server) []*server {
		return slices.DeleteFunc(slices.Clone(all), func(o *server) bool { return o == v })
	}
	f.servers = without(f.servers)
	delete(f.byID, v.ID)
	if f.byKey[v.Key] = without(f.byKey[v.Key]); len(f.byKey[v.Key]) == 0 {
		delete(f.byKey, v.Key)
	}
}

// server by its number; nil where there is none.
func (f *fleet) server(id uint64) *server { return f.byID[id] }
