// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/static"
)

// hanging is what moody says before it hangs.
const hanging = "never to answer"

// moody is a policy that behaves as its parameter "mood" says: it plans as static does, or it hangs, exits, talks nonsense, sets a
// discipline's parameter to what that cannot be, or takes all that it can get. With the parameter "layout" it plans exactly that.
type moody struct{}

func (moody) Describe(context.Context) (*policy.Description, error) {
	return &policy.Description{
		Name: "moody", Version: "1", Summary: "Plans in halves of GPUs, or fails.", Disciplines: []string{"eager"},
		Parameters: []*policy.Parameter{{
			Name: "mood", Type: policy.TypeString, DefaultValue: "well", Documentation: "well, hang, exit, nonsense, misset, partitions, names, forks, memory, sockets or output",
		}, {
			Name: "layout", Type: policy.TypeString, Documentation: "partitions with their models: \"gpu0.0:50=a+b gpu0.1:50=b\"",
		}},
	}, nil
}

func (moody) Plan(ctx context.Context, s *policy.Snapshot, h policy.Host) (*policy.Plan, error) {
	switch s.GetParameters()["mood"] {
	case "hang":
		fmt.Fprintln(os.Stderr, hanging)
		time.Sleep(time.Hour)
	case "partitions", "names", "forks", "memory", "sockets", "output":
		return greedy(s)
	case "exit":
		os.Exit(3)
	case "nonsense":
		return &policy.Plan{
			SnapshotRevision: s.GetRevision(), Policy: "moody", PolicyVersion: "1",
			Partitions: []*policy.Partition{{Id: "nowhere", Gpus: []string{"no such GPU"}, ThreadPercentage: 900}},
		}, nil
	}
	if text := s.GetParameters()["layout"]; text != "" {
		l, err := parseLayout(text)
		if err != nil {
			return nil, err
		}
		return l.plan(s), nil
	}
	halves := proto.CloneOf(s)
	halves.Parameters = map[string]string{"partitions": "* = 50, 50", "discipline": "eager"}
	plan, err := static.New().Plan(ctx, halves, h)
	if err != nil {
		return nil, err
	}
	plan.Policy, plan.PolicyVersion = "moody", "1"
	if s.GetParameters()["mood"] == "misset" {
		for _, d := range plan.Dispatch {
			d.Discipline, d.Parameters = "timeout", map[string]string{"max_queue_delay": "soon"}
		}
	}
	return plan, nil
}
