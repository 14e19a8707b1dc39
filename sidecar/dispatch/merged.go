// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

// A member of a merge group has no queue of its own while it is merged: its requests are queued as the group's, share batches with those
// of other members, and run as rows of the group, which package batch makes of them. All that a client sees is the member's: names of
// model, version and outputs, errors, statistics, its SLO. This file is what a single request needs for that.

// marshal returns the message of a request that is sent alone: that of its merge group if there is a member.
func marshal(r *batch.Request, member *batch.Membership) mem.BufferSlice {
	if member == nil {
		return r.Marshal()
	}
	row := member.Request(r)
	defer row.Free()
	return row.Marshal()
}

// readAnswer reads the answer to one request, and turns it into the member's answer if there is a member.
func readAnswer(data mem.BufferSlice, member *batch.Membership) (*batch.Response, error) {
	resp, err := batch.ReadResponse(data)
	if err == nil && member != nil {
		member.Answer(resp)
	}
	return resp, err
}

// renamed returns a server's error about a group's request with the names of the member.
func renamed(err error, member *batch.Membership) error {
	if err == nil || member == nil {
		return err
	}
	s := forward.Status(err)
	if text := member.Text(s.Message()); text != s.Message() {
		return status.Error(s.Code(), text)
	}
	return err
}
