// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package depcheck

import (
	"fmt"
	"slices"
	"strings"
)

// rule says which packages of the module those below a path may import. The longest path that a package lies below decides.
type rule struct {
	path string
	may  []string // "x" is package x, "x/..." is x and everything below
	why  string
}

var rules = []rule{
	{"plugins/policy", nil, "the contract stands alone: policies of other people compile against it"},
	{"plugins/policy/conformance", []string{"plugins/policy"}, "it tests the contract, not Conch"},
	{"plugins/policy/pack/packtest", []string{"plugins/policy", "plugins/policy/conformance"}, "what tests of policies share"},
	{"plugins/policy/grid", []string{"plugins/policy"}, "it is the file form of a profile"},
	{"plugins/policy/exact", []string{"plugins/policy"}, "it is a function of the snapshot that policies are judged by, and may search with"},
	{"plugins/policy/pack", []string{"plugins/policy"}, "it is what policies share, and a function of the snapshot"},
	{"plugins/examples", nil, "they are not written in Go"},
	{"plugins/conch", []string{"plugins/policy", "plugins/policy/pack", "plugins/policy/exact"}, "the other policies are handed to it"},
	{"plugins", []string{"plugins/policy", "plugins/policy/pack", "plugins/builtin"}, "a policy is a function of the snapshot"},
	{"plugins/builtin", []string{"plugins/..."}, "it is the list of policies"},

	{"sidecar", []string{"..."}, "main wires everything"},
	{"sidecar/command", []string{
		"plugins/policy", "sidecar/admin/api", "sidecar/apply/driver/shim", "sidecar/command/check", "sidecar/component/evaluations", "sidecar/component/state", "sidecar/config", "sidecar/dispatch/queue", "sidecar/plan", "sidecar/policyhost", "sidecar/policyhost/confine", "sidecar/reaper", "internal/usage",
	}, "it is the command line; the daemon is handed to it"},
	{"sidecar/command/check", []string{
		"plugins/policy", "repo", "sidecar/apply/driver", "sidecar/apply/mps", "sidecar/component/credentials", "sidecar/component/machine", "sidecar/component/servers", "sidecar/config", "sidecar/control/snapshot", "sidecar/policyhost", "internal/triton/tritonpb",
	}, "it looks at a machine and runs nothing but the policy"},
	{"sidecar/component", nil, "it is a list of components and knows none"},
	{"sidecar/component/doors", nil, "doors know nothing of what is behind them"},
	{"sidecar/component/cluster", []string{"sidecar/apply/driver/kubernetes/...", "sidecar/config", "sidecar/handon", "internal/store"}, "it is a lease, what only its holder writes, and the doors of who waits for it"},
	{"sidecar/component/credentials", []string{"sidecar/config", "internal/certs"}, "it reads certificates"},
	{"sidecar/component/evaluations", []string{"plugins/policy", "sidecar/sim/evaluate"}, "it is both sides of one child process"},
	{"sidecar/component/fronts", []string{"sidecar/admin/api", "sidecar/component/credentials", "sidecar/component/doors", "sidecar/config", "sidecar/dispatch/...", "internal/..."}, "clients' doors know the request path and no plan"},
	{"sidecar/component/machine", []string{"estimator/gpu", "plugins/policy", "sidecar/apply/mps", "sidecar/config", "sidecar/control/snapshot", "sidecar/observe"}, "it looks at this machine"},
	{"sidecar/component/modelcontrol", []string{"repo", "sidecar/apply/...", "sidecar/config", "sidecar/control", "sidecar/dispatch/ingress/aggregate", "internal/triton/..."}, "it makes clients' orders into control's"},
	{"sidecar/component/observers", []string{"sidecar/dispatch", "sidecar/dispatch/forward"}, "they see requests and call what they are handed"},
	{"sidecar/component/operators", []string{
		"sidecar/admin/...", "sidecar/apply/...", "sidecar/calibration", "sidecar/component/...", "sidecar/config", "sidecar/console", "sidecar/console/door", "sidecar/control", "sidecar/control/merging", "sidecar/dispatch", "sidecar/dispatch/ingress/metrics", "sidecar/observe/...", "sidecar/record", "sidecar/watch", "estimator/calibrate", "merger", "internal/triton/...",
	}, "operators see everything"},
	{"sidecar/component/partitions", []string{"sidecar/apply/...", "sidecar/component/servers", "sidecar/component/state", "sidecar/config", "sidecar/control", "sidecar/observe", "internal/triton/..."}, "it ties the reconciler to what it acts on"},
	{"sidecar/component/policies", []string{"sidecar/config", "sidecar/control", "sidecar/policyhost/..."}, "it makes the policy host"},
	{"sidecar/component/reload", []string{"sidecar/config"}, "it hands a configuration on"},
	{"sidecar/component/routes", []string{"sidecar/apply", "sidecar/control", "sidecar/dispatch", "sidecar/dispatch/ingress/...", "sidecar/dispatch/names", "sidecar/dispatch/router", "internal/triton/..."}, "it joins packages that may not know each other"},
	{"sidecar/component/scratch", []string{"estimator", "repo", "plugins/policy", "sidecar/apply/...", "sidecar/calibration", "sidecar/component/servers", "sidecar/config", "sidecar/control", "sidecar/control/estimates", "sidecar/control/merging", "sidecar/observe", "internal/clock", "internal/triton/..."}, "it measures and verifies in partitions that no plan has"},
	{"sidecar/component/servers", []string{"repo", "plugins/policy", "estimator/gpu", "sidecar/apply/...", "sidecar/component/cluster", "sidecar/component/machine", "sidecar/config", "sidecar/observe", "internal/triton/..."}, "it makes drivers and knows no plan"},
	{"sidecar/component/state", []string{"repo", "sidecar/apply/driver/shim", "internal/store"}, "it is a directory"},
	{"sidecar/component/traces", []string{"sidecar/component/credentials", "sidecar/config", "sidecar/tracing"}, "it makes what sends spans"},
	{"sidecar/config", []string{"plugins/policy", "plugins/policy/grid", "repo", "internal/..."}, "configuration knows nothing that it configures"},
	{"sidecar/admin", []string{"sidecar/admin/...", "sidecar/watch", "sidecar/console", "sidecar/console/door", "sidecar/control", "sidecar/control/conditions", "sidecar/control/estimates", "sidecar/control/events", "sidecar/record", "sidecar/apply/...", "sidecar/plan", "plugins/policy", "repo", "internal/..."}, "arrows run down"},
	{"sidecar/admin/api", nil, "it is types: packages that encode, fill in, decode or print them import it"},
	{"sidecar/admin/client", []string{"sidecar/admin/api", "plugins/policy"}, "tritonctl and other people's programs import it"},
	{"sidecar/advice", []string{"plugins/policy"}, "it is pure; conch and the simulator feed it"},
	{"sidecar/control", []string{
		"sidecar/control/...", "merger", "sidecar/admin/api", "sidecar/config", "sidecar/advice", "sidecar/apply/...", "sidecar/observe/...", "sidecar/plan/...", "sidecar/policyhost/...", "sidecar/dispatch", "sidecar/dispatch/names", "sidecar/dispatch/router", "sidecar/sim/evaluate",
		"plugins/...", "repo", "estimator/...", "internal/...",
	}, "it ties observe, policyhost, plan and apply together"},
	{"sidecar/control/events", []string{"sidecar/admin/api", "internal/store"}, "it keeps what happened and knows nothing of why"},
	{"sidecar/control/history", []string{"sidecar/admin/api", "internal/store"}, "it keeps plans and reads none"},
	{"sidecar/control/merging", []string{"merger", "plugins/policy", "repo"}, "it makes merge groups for the packages that keep them"},
	{"sidecar/control/conditions", []string{"sidecar/admin/api", "sidecar/apply", "sidecar/apply/decide"}, "it says what the reconciler observed"},
	{"sidecar/control/orders", []string{"sidecar/admin/api", "plugins/policy", "internal/store"}, "it keeps what was declared; the loop acts on it"},
	{"sidecar/control/planner", []string{"sidecar/config", "sidecar/plan", "sidecar/policyhost", "plugins/policy"}, "it proposes and applies nothing"},
	{"sidecar/calibration", []string{"sidecar/apply/driver", "sidecar/apply/warmup", "estimator/...", "plugins/policy", "internal/..."}, "it starts scratch servers and measures on them; it knows of no plan"},
	{"sidecar/handon", []string{"sidecar/dispatch/batch", "sidecar/dispatch/forward", "sidecar/dispatch/ingress/gate", "internal/..."}, "it hands requests on and knows neither queue, plan nor cluster"},
	{"sidecar/reaper", nil, "it starts a program and knows nothing of it"},
	{"sidecar/tracing", nil, "it sends spans and knows nothing of what they are about"},
	{"sidecar/watch", []string{"sidecar/admin/api"}, "it streams what sources give it and knows none of them"},
	{"sidecar/console", []string{"internal/look"}, "it is files and a door: what it shows comes over the admin API"},
	{"sidecar/record", []string{"sidecar/dispatch", "sidecar/sim/workload"}, "it writes what arrives as a trace that the simulator reads"},
	{"sidecar/apply", []string{"sidecar/apply/...", "sidecar/plan", "sidecar/dispatch/forward", "sidecar/dispatch/names", "sidecar/dispatch/router", "plugins/policy", "repo", "internal/..."}, "arrows run down"},
	{"sidecar/apply/driver", []string{"sidecar/apply/driver/shim", "sidecar/apply/mps", "plugins/policy", "internal/..."}, "a driver starts processes and knows nothing of plans"},
	{"sidecar/apply/driver/kubernetes", []string{"sidecar/apply/driver", "plugins/policy"}, "it makes objects of a cluster and knows nothing of plans"},
	{"sidecar/apply/driver/kubernetes/configmaps", []string{"sidecar/apply/driver/kubernetes", "internal/store"}, "it keeps what it is given"},
	{"sidecar/apply/mps", []string{"plugins/policy"}, "it writes MPS's environment and files"},
	{"sidecar/sim", []string{
		"sidecar/sim/...", "sidecar/dispatch/names", "sidecar/dispatch/queue/...", "sidecar/dispatch/forecast", "sidecar/observe/curve", "sidecar/advice", "sidecar/plan", "sidecar/policyhost", "plugins/...", "internal/...",
	}, "it drives the queue and the policies, those that are processes through the host that conch has"},
	{"sidecar/observe", []string{"sidecar/observe/...", "plugins/policy", "internal/..."}, "observe, plan, policyhost and dispatch meet in control"},
	{"sidecar/observe/recent", []string{"sidecar/admin/api"}, "it counts what it is given"},
	{"sidecar/plan", []string{"plugins/policy"}, "it is pure"},
	{"sidecar/policyhost", []string{"sidecar/policyhost/...", "plugins/policy"}, "observe, plan, policyhost and dispatch meet in control"},

	{"sidecar/dispatch", []string{"sidecar/dispatch/...", "plugins/policy", "internal/..."}, "observe, plan, policyhost and dispatch meet in control"},
	{"sidecar/dispatch/queue", []string{"sidecar/dispatch/queue/...", "plugins/policy"}, "it is pure; the simulator runs it too"},
	{"sidecar/dispatch/queue/latency", nil, "it is time and tables"},
	{"sidecar/dispatch/queue/adaptive", []string{"sidecar/dispatch/queue/latency"}, "it is rules, and knows nothing of queues"},
	{"sidecar/dispatch/forecast", []string{"sidecar/dispatch/queue", "plugins/policy"}, "it is pure; the simulator runs it too"},
	{"sidecar/dispatch/batch", []string{"internal/..."}, "it knows Triton's messages and nothing else"},
	{"sidecar/dispatch/ensemble", []string{"sidecar/dispatch/forecast", "internal/triton/tritonpb"}, "it reads a configuration and executes nothing"},
	{"sidecar/dispatch/names", []string{"sidecar/dispatch/batch", "internal/..."}, "it chooses and routes nothing; the simulator chooses with it too"},
	{"sidecar/dispatch/router", []string{"sidecar/dispatch/batch", "sidecar/dispatch/names", "sidecar/dispatch/forward/...", "plugins/policy", "internal/..."}, "it owns partitions and knows no queue"},
	{"internal/clock", nil, "it is time"},
	{"sidecar/dispatch/spans", nil, "it is what the request path says of itself, and does not know it"},
	{"sidecar/dispatch/wire", []string{"internal/buffers"}, "it is gRPC on HTTP/2, and knows no message"},
	{"sidecar/dispatch/forward", []string{"sidecar/dispatch/batch", "sidecar/dispatch/wire", "internal/..."}, "it knows how to reach a partition"},
	{"sidecar/dispatch/ingress", []string{"sidecar/dispatch/ingress/...", "sidecar/dispatch/batch", "sidecar/dispatch/spans", "sidecar/dispatch/wire", "internal/..."}, "a front declares the interfaces that it needs"},

	{"estimator", []string{"estimator/...", "internal/onnx/...", "internal/modeldir", "plugins/policy", "plugins/policy/grid"}, "it reads graphs"},
	{"estimator/calibrate/server", []string{"estimator/...", "internal/triton/...", "internal/pymodels"}, "it runs the models of a calibration on a Triton"},
	{"estimator/tritonmodel", []string{"estimator", "internal/triton/tritonpb"}, "it reads a model's configuration"},
	{"estimator/published", []string{"estimator/...", "internal/onnx/...", "internal/zoo"}, "it reads published measurements, for training and the benchmark"},
	{"merger", []string{"merger/...", "internal/onnx/...", "internal/modeldir", "plugins/policy"}, "it rewrites graphs"},
	{"repo", []string{"repo/...", "internal/..."}, "a leaf"},
	{"tritonctl", []string{
		"tritonctl/...", "sidecar/admin/api", "sidecar/admin/client", "sidecar/console/door", "sidecar/sim/...", "estimator/...", "merger/...", "repo/...", "internal/clock", "internal/modeldir", "internal/usage", "plugins/policy", "plugins/policy/grid", "plugins/builtin",
	}, "it speaks to conch over the admin API"},
	{"tritonctl/cmd/merge", []string{"tritonctl/...", "merger/...", "estimator/...", "internal/onnx/...", "internal/triton/trial", "sidecar/admin/api"}, "merge verify is an order to conch, or runs models on a Triton for trials, which the user names"},
	{"internal", []string{"internal/..."}, "internal packages are leaves"},
	{"internal/minitriton", []string{"internal/...", "plugins/policy"}, "what it emulates, interference, is the contract's"},
	{"scripts/pictures", []string{"internal/..."}, "it runs the programs that a user runs"},
	{"demo", []string{"internal/..."}, "it runs the programs that a user runs"},
	{"bench", []string{"internal/...", "plugins/policy", "plugins/builtin", "plugins/conch", "merger/...", "estimator/...", "sidecar/admin/api", "sidecar/admin/client", "sidecar/sim/...", "sidecar/dispatch/queue/...", "sidecar/dispatch/batch", "sidecar/dispatch/forward", "sidecar/dispatch/wire", "sidecar/apply/driver", "sidecar/apply/driver/kubernetes", "sidecar/apply/driver/kubernetes/configmaps", "sidecar/apply/mps", "sidecar/handon"}, "it runs the programs that a user runs, the simulator with every discipline of the queue, the clients of a server's ports, a replica that hands on, the MPS daemon of a real GPU, and the driver kubernetes, with a release's Lease and state, against more nodes than a machine runs servers for"},
	{"e2e", []string{"e2e/...", "internal/...", "sidecar/admin/api", "sidecar/admin/client", "plugins/..."}, "it tests from outside"},
}

// Check compares what the packages of a module import with the rules. Imports maps a package's path inside the module ("." is the root)
// to the paths that it imports inside the module. Every violation is one sentence.
func Check(imports map[string][]string) []string {
	var violations []string
	for from, targets := range imports {
		r, ok := ruleOf(from)
		if !ok {
			violations = append(violations, from+" has no rule: say in internal/depcheck/rules.go what it may import")
			continue
		}
		for _, to := range targets {
			if !slices.ContainsFunc(r.may, func(pattern string) bool { return matches(pattern, to) }) {
				violations = append(violations, fmt.Sprintf("%s imports %s, but may import only %s: %s", from, to, allowed(r.may), r.why))
			}
		}
	}
	slices.Sort(violations)
	return violations
}

func allowed(may []string) string {
	if len(may) == 0 {
		return "nothing of this module"
	}
	return strings.Join(may, ", ")
}

func ruleOf(path string) (best rule, ok bool) {
	for _, r := range rules {
		if matches(r.path+"/...", path) && (!ok || len(r.path) > len(best.path)) {
			best, ok = r, true
		}
	}
	return best, ok
}

func matches(pattern, path string) bool {
	if pattern == "..." {
		return true
	}
	below, wild := strings.CutSuffix(pattern, "/...")
	return path == below || wild && strings.HasPrefix(path, below+"/")
}
