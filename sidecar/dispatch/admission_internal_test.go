// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestAdmission: whatever comes and goes, and however the shares are divided anew, the counts are those of what is under way, a model within its
// share is never refused, and the limits hold while the shares stay as they are.
func TestAdmission(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := held{rapid.Int64Range(1, 40).Draw(t, "requests"), rapid.Int64Range(1, 400).Draw(t, "bytes")}
		var a admission
		a.init(limit)
		accounts := make([]*account, rapid.IntRange(1, 4).Draw(t, "models"))
		for i := range accounts {
			accounts[i] = new(account)
		}
		a.divide(accounts)
		type entry struct {
			in   *account
			size int64
		}
		var inside []entry
		streams, divided := int64(0), false
		t.Repeat(map[string]func(*rapid.T){
			"admit": func(t *rapid.T) {
				to := rapid.SampledFrom(append(accounts[:len(accounts):len(accounts)], &a.rest)).Draw(t, "to")
				size := rapid.Int64Range(0, 50).Draw(t, "size")
				own := to.held.plus(held{1, size})
				within := own.requests <= to.share.requests && own.bytes <= to.share.bytes
				late := rapid.Int64Range(0, to.held.requests).Draw(t, "late")
				common := a.common
				if _, err := a.admit(to, size, late); err == nil {
					require.True(t, late <= to.share.requests || a.common.requests == common.requests, "late requests beyond its share")
					inside = append(inside, entry{to, size})
				} else {
					require.False(t, within, "refused within its share")
				}
			},
			"leave": func(t *rapid.T) {
				if len(inside) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(inside)-1).Draw(t, "which")
				a.leave(inside[i].in, inside[i].size)
				inside = append(inside[:i], inside[i+1:]...)
			},
			"move": func(t *rapid.T) {
				if len(inside) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(inside)-1).Draw(t, "which")
				to := rapid.SampledFrom(accounts).Draw(t, "to")
				a.move(inside[i].in, to, inside[i].size)
				inside[i].in, divided = to, true
			},
			"stream": func(*rapid.T) {
				if _, err := a.open(); err == nil {
					streams++
				}
			},
			"divide": func(t *rapid.T) {
				a.divide(accounts[rapid.IntRange(0, len(accounts)).Draw(t, "from"):])
				divided = true
			},
			"": func(t *rapid.T) {
				var all, common held
				all.requests = streams
				for _, e := range inside {
					all = all.plus(held{1, e.size})
				}
				for _, ac := range append(accounts[:len(accounts):len(accounts)], &a.rest) {
					common = common.plus(ac.beyond(held{}))
				}
				require.Equal(t, all, a.all)
				require.Equal(t, common, a.common)
				if !divided {
					require.LessOrEqual(t, a.all.requests, limit.requests)
					require.True(t, a.all.bytes <= limit.bytes || a.all.bytes <= limit.bytes+50, "one request alone may be larger")
				}
			},
		})
	})
}
