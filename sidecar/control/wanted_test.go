// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
)

// TestAVariantThatNoPlanWillStart is refused at once, each time; the event says it once.
func TestAVariantThatNoPlanWillStart(t *testing.T) {
	for mode, want := range map[string]string{
		"control": "",
		"advise":  "'a' with an accuracy of at least 0.9 would be served by 'big', which does not run: mode advise applies no plan without an operator's order",
		"observe": "'a' with an accuracy of at least 0.9 would be served by 'big', which does not run: mode observe applies no plan without an operator's order",
	} {
		t.Run(mode, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, "mode: "+mode+"\n")
				defer r.start()()
				for range 2 {
					err := r.Wanted(names.InactiveError{Name: "a", Model: "big", Wish: names.Wish{Accuracy: .9}, Rows: 1})
					require.Equal(t, want, status.Convert(err).Message())
					require.Equal(t, want != "", status.Code(err) == codes.Unavailable)
				}
				require.Len(t, r.messages(events.VariantWanted), 1)
				for range 600 { // an hour
					pass(6 * time.Second)
					_ = r.Wanted(names.InactiveError{Name: "a", Model: "big", Wish: names.Wish{Accuracy: .9}, Rows: 1})
				}
				require.Len(t, r.messages(events.VariantWanted), 7, "a client that asks on does not fill the log")
			})
		})
	}
}
