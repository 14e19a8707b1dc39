// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/conch-serving/conch/internal/figure"
)

// killed is what one round of the fault says (e2e/cluster).
type killed struct {
	Sent, Lost, Again int
	GapSeconds        float64
}

// failover has all of three replicas but one killed at once, again and again, by the tests of faults on a real Kubernetes, and reads what their callers noticed.
func (b *bench) failover(ctx context.Context, r *figure.Report) (err error) {
	r.Emulated = "GPUs, by a DRA driver of the tests; real tritonservers in Pods of two nodes, all of it and the replicas on one machine"
	rounds := b.roundsOr(20)
	if b.quick {
		rounds = 1
	}
	programs, err := filepath.Abs(filepath.Join(".cache", "cluster", "bin"))
	if err != nil {
		return err
	}
	out, err := os.CreateTemp("", "conch-failover")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close(), os.Remove(out.Name())) }()
	test := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-timeout=2h", "-run=^TestFaults$/^all_replicas_but_one_are_killed_at_once$", ".")
	test.Dir, test.Stdout, test.Stderr = filepath.Join("e2e", "cluster"), b.progress, b.progress
	test.Env = append(os.Environ(), "CONCH_CLUSTER_BIN="+programs, "CONCH_TRITON_HOME="+filepath.Dir(b.server), "CONCH_CLUSTER_ROUNDS="+strconv.Itoa(rounds), "CONCH_CLUSTER_MEASURED="+out.Name())
	if err := test.Run(); err != nil {
		return fmt.Errorf("the tests of faults: %w", err)
	}
	var gaps, again []float64
	sent, lost := 0, 0
	for all := json.NewDecoder(out); ; {
		var one killed
		if err := all.Decode(&one); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		gaps, again = append(gaps, one.GapSeconds), append(again, float64(one.Again))
		sent, lost = sent+one.Sent, lost+one.Lost
	}
	if len(gaps) != rounds {
		return fmt.Errorf("%d rounds were measured of %d", len(gaps), rounds)
	}
	r.AddRuns("failover.gap_seconds", gaps, "s", "the longest time without an answer, where all of three replicas but one are killed at once, the owner among them; leases of five seconds")
	r.AddRuns("failover.asked_again", again, "requests", "that a killed replica had, of four callers: each asked another replica once more, and was answered")
	r.Add("failover.lost_requests", float64(lost), "requests", fmt.Sprintf("of %d requests of these rounds, those asked again among them", sent))
	return nil
}
