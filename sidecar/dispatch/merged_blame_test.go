// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// A request that fails on its member as well is at fault itself: the group is cleared, and a client that sends only such requests cannot take it
// out again. Failures of another kind, or of another member's requests, still can.
func TestARequestThatFailsOnItsMemberIsNotHeldAgainstTheGroup(t *testing.T) {
	for name, change := range map[string]func(*tritonpb.ModelInferRequest){"queued": func(*tritonpb.ModelInferRequest) {}, "passed through": outside} {
		t.Run(name, func(t *testing.T) {
			p := newTriton(t)
			p.refuse = func(r *tritonpb.ModelInferRequest) error {
				switch binary.LittleEndian.Uint32(r.RawInputContents[0]) {
				case 666:
					return status.Errorf(codes.Internal, "Failed to process the request(s) for model instance '%s_0', message: no such token", r.ModelName)
				case 777:
					return broken(r)
				}
				return nil
			}
			now := newMovableClock()
			var d *dispatch.Dispatcher
			revision := uint64(1)
			faulted, cleared, swapped := make(chan [2]string, 10), make(chan [2]string, 10), make(chan error, 10)
			o := dispatch.Options{
				Clock: now,
				PlaceChanged: func(h router.PlaceHealth) {
					at := [2]string{h.Partition, h.Model}
					switch {
					case h.Group && h.Ejected:
						faulted <- at
						revision++
						next := apart(revision, p)
						go func() { swapped <- d.Swap(t.Context(), next) }()
					case h.Group && h.Excused:
						cleared <- at
					}
				},
			}
			d, _ = newDispatcher(t, o, merged(1, p))
			again := func() {
				revision++
				require.NoError(t, d.Swap(t.Context(), merged(revision, p)))
			}
			bad := func(seed uint32, member int) error {
				return infer(t.Context(), t, d, seed, 1, both(of(member), change))
			}
			group := [2]string{"p" + p.address, "g"}

			err := bad(666, 1)
			requireCode(t, codes.Internal, err)
			require.Contains(t, err.Error(), "no such token")
			require.Equal(t, group, <-faulted, "at first nobody knows whose fault it is")
			require.NoError(t, <-swapped)
			require.Equal(t, group, <-cleared)

			again()
			for range 5 {
				require.Contains(t, bad(666, 1).Error(), "no such token")
				now.move(time.Minute)
			}
			require.Empty(t, faulted, "it is known by now")

			require.NoError(t, bad(777, 1), "which another failure does not make the request's")
			require.Equal(t, group, <-faulted)
			require.NoError(t, <-swapped)
			require.Empty(t, cleared)

			again()
			require.Error(t, bad(666, 0))
			require.Equal(t, group, <-faulted, "of another member")
			require.NoError(t, <-swapped)
			require.Equal(t, group, <-cleared)

			again()
			now.move(20 * time.Minute)
			require.Error(t, bad(666, 1))
			require.Equal(t, group, <-faulted, "after a while it is asked anew")
			require.NoError(t, <-swapped)
		})
	}
}

// If a group later fails with the text of a request's own fault, its failures count against it again after groupMemory.
func TestAGroupIsNotExcusedForEver(t *testing.T) {
	p := newTriton(t)
	p.refuse = func(r *tritonpb.ModelInferRequest) error {
		if r.ModelName == "g" || binary.LittleEndian.Uint32(r.RawInputContents[0]) == 666 {
			return status.Error(codes.Internal, "Failed to process the request(s), message: RuntimeError")
		}
		return nil
	}
	now := newMovableClock()
	var d *dispatch.Dispatcher
	swapped := make(chan error, 10)
	o := dispatch.Options{Clock: now, PlaceChanged: ejects(func(string) {
		next := apart(d.Routes().Revision+1, p)
		go func() { swapped <- d.Swap(t.Context(), next) }()
	})}
	d, _ = newDispatcher(t, o, merged(1, p))
	require.Error(t, infer(t.Context(), t, d, 666, 1, of(1)))
	require.NoError(t, <-swapped)
	require.NoError(t, d.Swap(t.Context(), merged(3, p)))
	for range 2 {
		require.Error(t, infer(t.Context(), t, d, 1, 1, of(1)))
		now.move(6 * time.Minute)
	}
	require.NoError(t, infer(t.Context(), t, d, 1, 1, of(1)), "its member serves it")
	require.NoError(t, <-swapped)
}

// TestAnotherFaultOfTheMemberDoesNotClearItsGroup, though servers give both the same code.
func TestAnotherFaultOfTheMemberDoesNotClearItsGroup(t *testing.T) {
	p := newTriton(t)
	p.refuse = func(r *tritonpb.ModelInferRequest) error {
		if r.ModelName == "g" {
			return broken(r)
		}
		return status.Errorf(codes.Internal, "Failed to process the request(s) for model instance '%s_0', message: no such token", r.ModelName)
	}
	var d *dispatch.Dispatcher
	faulted, swapped := make(chan string, 10), make(chan error, 10)
	o := dispatch.Options{
		PlaceChanged: func(h router.PlaceHealth) {
			require.False(t, h.Excused, "the group failed in another way")
			ejects(func(string) {
				faulted <- h.Model
				next := apart(d.Routes().Revision+1, p)
				go func() { swapped <- d.Swap(t.Context(), next) }()
			})(h)
		},
	}
	d, _ = newDispatcher(t, o, merged(1, p))
	require.ErrorContains(t, infer(t.Context(), t, d, 1, 1, of(1)), "no such token")
	require.Equal(t, "g", <-faulted)
	require.NoError(t, <-swapped)
	require.NoError(t, d.Swap(t.Context(), merged(3, p)))
	require.ErrorContains(t, infer(t.Context(), t, d, 1, 1, of(1)), "no such token")
	require.Equal(t, "g", <-faulted, "the member's fault does not excuse the group's")
	require.NoError(t, <-swapped)
}
