// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestFaults does to a conch under load what happens in a cluster, CONCH_CLUSTER_ROUNDS times each. No request may fail but those that a killed process
// had, which its caller asks once more. After each round what is there is what the plan asks for.
func TestFaults(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("CONCH_CLUSTER_ROUNDS"))
	if err != nil || rounds < 1 {
		t.Skip("make faults-cluster runs this")
	}
	r := newRig(t, 1)
	r.owner.start()
	r.awaitServers(r.all(), "node-")
	r.replicas = append(r.replicas, r.second().join(), r.third().join())
	r.settles()
	for _, fault := range []struct {
		name string
		do   func()
	}{
		{"the plan moves the models between the nodes", r.planMoves},
		{"a Pod is deleted", r.podDeleted},
		{"a Pod is evicted", r.podEvicted},
		{"the leader is killed", r.leaderKilled},
		{"the leader is paused for longer than its lease, and goes on", r.leaderPaused},
		{"a follower is killed", r.followerKilled},
		{"all replicas but one are killed at once", r.allButOneKilled},
		{"every replica is replaced in turn", r.replaced},
		{"scaled to one replica, to three, and to one that has not led yet", r.scaled},
		{"the API server is down for longer than any lease", r.apiServerDown},
		{"a kubelet is down until the plan is without its node", r.kubeletDown},
	} {
		t.Run(fault.name, func(t *testing.T) {
			for round := range rounds {
				if !t.Run(strconv.Itoa(round+1), func(t *testing.T) {
					before := r.t
					r.t = t
					defer func() { r.t = before }()
					begin := time.Now()
					fault.do()
					r.settles()
					t.Logf("%.1f s", time.Since(begin).Seconds())
				}) {
					t.FailNow() // what comes next would begin from a state that nobody wants
				}
			}
		})
		if t.Failed() {
			return
		}
	}
}

// podDeleted deletes one of the servers' Pods under load.
func (r *rig) podDeleted() {
	r.podGoes("deleted", func(name string) { r.kubectl("delete", "pod", "-n", namespaceOfTests, name, "--wait=false") })
}

// podEvicted evicts one by the Eviction API, as a drain of its node does: the PodDisruptionBudget may want that to wait.
func (r *rig) podEvicted() {
	r.podGoes("evicted", func(name string) {
		file := filepath.Join(r.t.TempDir(), "eviction.json")
		must(r.t, os.WriteFile(file, fmt.Appendf(nil, `{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": %q, "namespace": %q}}`, name, namespaceOfTests), 0o644))
		r.eventually("the eviction is allowed", time.Minute, func() error {
			_, err := r.Kubectl(r.t.Context(), "create", "--raw", "/api/v1/namespaces/"+namespaceOfTests+"/pods/"+name+"/eviction", "-f", file)
			return err
		})
	})
}

func (r *rig) podGoes(how string, do func(name string)) {
	r.t.Helper()
	end := r.load()
	names := slices.Sorted(maps.Keys(r.servers()))
	name := names[time.Now().UnixNano()%int64(len(names))]
	do(name)
	r.awaitServers(r.all(), "node-")
	r.none(end())
	if _, still := r.servers()[name]; still {
		r.t.Errorf("%s was %s, and is there", name, how)
	}
}

// planMoves has the two models change nodes under load.
func (r *rig) planMoves() {
	r.t.Helper()
	end := r.load()
	names := []string{"one", "two"}
	if r.swapped = !r.swapped; r.swapped {
		slices.Reverse(names)
	}
	r.static("--set", r.placement(names...))
	r.flows()
	r.none(end())
}

// static has policy static place the models, with some parameters more.
func (r *rig) static(parameters ...string) {
	r.t.Helper()
	for _, order := range [][]string{append([]string{"policy", "use", "static", "--set", "partitions=" + sharesOfTests}, parameters...), {"plan", "apply", "--yes"}} {
		_, err := r.owner.tritonctl(order...)
		must(r.t, err)
	}
	r.settles()
}

// kubeletDown stops that of a node under load, until the plan is without the node, and starts it. Models may be anywhere: a plan that leaves one without a place, since
// parameters say a place that is gone, waits for an operator.
func (r *rig) kubeletDown() {
	r.t.Helper()
	r.static()
	end := r.load()
	must(r.t, r.StopKubelet(2))
	r.eventually("a plan without node-2", 2*time.Minute, func() error {
		if n := len(r.servers()); n != r.all()/nodesOfTests {
			return fmt.Errorf("it has %d servers", n)
		}
		return nil
	})
	must(r.t, r.StartKubelet(2))
	r.replan()
	r.awaitServers(r.all(), "node-")
	r.none(end())
}

// settles waits until what is there is what the plan asks for: by conch's own conditions, by the cluster's Pods and what they say of their models, and by what each
// server says it has loaded.
func (r *rig) settles() {
	r.t.Helper()
	r.eventually("observed is what is desired", 2*time.Minute, func() error {
		if len(r.replicas) > 1 && r.owner.hasEnded() { // after an outage of the API server another one may have been the first to have the lease
			r.owner.yields()
			r.awaitOwner("the API server was down", r.others())
			r.revive()
		}
		text, err := r.owner.tritonctl("partition", "ls", "-o", "json")
		if err != nil {
			return err
		}
		var list []struct {
			ID, HTTP   string
			Models     []string
			Retiring   bool
			Conditions []struct {
				Type, Message string
				Holds         bool
			}
		}
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return fmt.Errorf("tritonctl partition ls: %w", err)
		}
		said, err := r.saidModels()
		errs := []error{err}
		for _, p := range list {
			if p.Retiring {
				errs = append(errs, fmt.Errorf("%s is an old server that is to go", p.ID))
				continue
			}
			for _, c := range p.Conditions {
				if c.Holds != (c.Type == "ready") {
					errs = append(errs, fmt.Errorf("%s: %s is %t: %s", p.ID, c.Type, c.Holds, c.Message))
				}
			}
			loaded, err := loadedAt(p.HTTP)
			slices.Sort(p.Models)
			if err == nil && !slices.Equal(loaded, p.Models) {
				err = fmt.Errorf("%s has loaded %v; the plan wants %v", p.ID, loaded, p.Models)
			}
			if err == nil && said[p.HTTP] != strings.Join(loaded, ",") {
				err = fmt.Errorf("%s has loaded %v, and its Pod says %q", p.ID, loaded, said[p.HTTP])
			}
			errs = append(errs, err)
		}
		// Those that are going are counted, too.
		if n := len(said); n != r.all() || len(list) != r.all() {
			errs = append(errs, fmt.Errorf("%d Pods for the %d partitions of the plan; want %d of each", n, len(list), r.all()))
		}
		return errors.Join(errs...)
	})
}

// saidModels is what the servers' Pods say of their models, by the servers' addresses.
func (r *rig) saidModels() (map[string]string, error) {
	out, err := r.Kubectl(r.t.Context(), "get", "pods", "-n", namespaceOfTests, "-l", "conch.io/release=conch", "-o",
		`jsonpath={range .items[*]}{.status.podIP}{":8000 "}{.metadata.annotations.conch\.io/models}{"\n"}{end}`)
	said := map[string]string{}
	for line := range strings.Lines(out) {
		at, models, _ := strings.Cut(strings.TrimSpace(line), " ")
		said[at] = models
	}
	return said, err
}

// loadedAt are the models that a server says are ready, sorted.
func loadedAt(address string) (names []string, err error) {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Post("http://"+address+"/v2/repository/index", "application/json", strings.NewReader(`{"ready": true}`))
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	var index []struct{ Name string }
	if err := json.NewDecoder(answer.Body).Decode(&index); err != nil {
		return nil, fmt.Errorf("the index of %s: %w", address, err)
	}
	for _, m := range index {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names, nil
}
