// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/protocolbuffers/txtpbfmt/ast"
	"github.com/protocolbuffers/txtpbfmt/parser"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// ConfigFile is the name of a model's configuration in its directory.
const ConfigFile = "config.pbtxt"

// SLOParameter is the parameter of a config.pbtxt that holds the model's SLO in
// milliseconds.
const SLOParameter = "slo_ms"

// SyntaxError is text that is not a model configuration.
type SyntaxError struct {
	// Line counts from 1; 0 where it is not known.
	Line int
	Text string
}

// Error is the line and what is wrong in it.
func (e *SyntaxError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("line %d: %s", e.Line, e.Text)
	}
	return e.Text
}

// ReadConfig reads a config.pbtxt into Triton's message. Fields that a newer
// Triton has and we do not know are skipped. The error is a *SyntaxError.
func ReadConfig(text []byte) (*tritonpb.ModelConfig, error) {
	return readConfig(text, true)
}

func readConfig(text []byte, newer bool) (*tritonpb.ModelConfig, error) {
	c := &tritonpb.ModelConfig{}
	if err := (prototext.UnmarshalOptions{DiscardUnknown: newer}).Unmarshal(text, c); err != nil {
		return nil, syntaxError(err, text)
	}
	return c, nil
}

// servedConfig is the configuration as a server reports it: a name that is left
// out is the directory's.
func servedConfig(text []byte, name string) (*tritonpb.ModelConfig, error) {
	c, err := ReadConfig(text)
	if err == nil && c.GetName() == "" {
		c.Name = name
	}
	return c, err
}

// syntaxError takes apart "proto: (line 3:5): what is wrong", in which the
// protobuf library varies the kind of its spaces.
func syntaxError(err error, config []byte) *SyntaxError {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	text = strings.TrimPrefix(text, "proto: ")
	position := regexp.MustCompile(`^(?:syntax error )?\(line (\d+):\d+\): `)
	if m := position.FindStringSubmatch(text); m != nil {
		line, _ := strconv.Atoi(m[1]) // the pattern admits digits only; a number too large for int is no line of ours
		return &SyntaxError{Line: line, Text: text[len(m[0]):]}
	}
	if strings.Contains(text, "unexpected EOF") {
		return &SyntaxError{Line: bytes.Count(bytes.TrimSpace(config), []byte("\n")) + 1, Text: "the text ends inside a message or a value"}
	}
	return &SyntaxError{Text: text}
}

// Manage edits a config.pbtxt into the one that Conch serves with: max_batch_size is
// set outright, and where Conch forms the batches nothing stays of dynamic_batching but
// itself. With its delay the server would hold back the batches of Conch's; without it
// nobody would batch what Conch's queue does not see: steps of ensembles and calls of
// other models that are left to the server, and requests that pass through. Everything
// else stays: comments, order, and fields that we do
// not know. A text that needs no edit is returned as it is.
func Manage(text []byte) ([]byte, error) {
	before, err := ReadConfig(text)
	if err != nil {
		return nil, err
	}
	nodes, err := parseTree(text)
	if err != nil {
		return nil, err
	}
	edited := false
	emptied := before.GetDynamicBatching() != nil && !triton.BatchesAtOnce(before.GetDynamicBatching()) && takesOver(before)
	if i := slices.IndexFunc(nodes, named("dynamic_batching")); emptied && i >= 0 {
		edited = true
		nodes[i] = &ast.Node{
			PreComments: append(nodes[i].PreComments, "# Conch forms the batches, by what dynamic_batching said here. What does not come through its queue is batched without a delay."),
			Name:        "dynamic_batching", SkipColon: true, Children: []*ast.Node{},
		}
	}
	if !slices.ContainsFunc(nodes, named("max_batch_size")) {
		edited = true
		nodes = slices.Insert(nodes, afterHead(nodes), &ast.Node{Name: "max_batch_size", Values: []*ast.Value{{Value: "0"}}})
	}
	if !edited {
		return text, nil
	}
	after := pretty(nodes)
	want := proto.CloneOf(before)
	if emptied {
		want.SchedulingChoice = &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: &tritonpb.ModelDynamicBatching{}}
	}
	got, err := ReadConfig(after)
	if err != nil || !proto.Equal(got, want) {
		return nil, &SyntaxError{Text: fmt.Sprintf("cannot be edited without changing its meaning; remove dynamic_batching and write max_batch_size by hand (%v)", err)}
	}
	return after, nil
}

// takesOver reports whether Conch forms the batches of a model that its author configured so: without dynamic_batching, requests may share a batch. What
// dynamic_batching asks of the queue is kept by Conch's own: delays by its disciplines, and priorities, queue limits and timeouts as Triton documents them
// (batch.QueuePolicy). Only the order of answers is not.
func takesOver(written *tritonpb.ModelConfig) bool {
	served := written
	if d := written.GetDynamicBatching(); d != nil && !d.GetPreserveOrdering() {
		served = proto.CloneOf(written)
		served.SchedulingChoice = nil
	}
	ok, _ := Batchable(served)
	return ok
}

// parseTree parses the text into a syntax tree that keeps its comments.
func parseTree(text []byte) (nodes []*ast.Node, err error) {
	// The formatter's parser is written for files that parse; what it does with
	// others is its own affair.
	defer func() {
		if r := recover(); r != nil {
			err = &SyntaxError{Text: fmt.Sprintf("unreadable as text format: %v", r)}
		}
	}()
	nodes, err = parser.Parse(directive.ReplaceAll(text, []byte("$1;")))
	if err != nil {
		return nil, &SyntaxError{Text: err.Error()}
	}
	return nodes, nil
}

// directive is an order to the formatter in a comment. The formatter's parser obeys
// it: it sorts fields, and leaves out those behind "off", which Triton reads.
// parseTree writes it in another way, and pretty as it was.
var (
	directive = regexp.MustCompile(`(#[ \t]*txtpbfmt[ \t]*):`)
	hidden    = regexp.MustCompile(`(#[ \t]*txtpbfmt[ \t]*);`)
)

// pretty is the text of a tree that parseTree made.
func pretty(nodes []*ast.Node) []byte {
	return hidden.ReplaceAll(parser.PrettyBytes(nodes, 0), []byte("$1:"))
}

func named(name string) func(*ast.Node) bool {
	return func(n *ast.Node) bool { return n.Name == name }
}

// afterHead is the place behind the fields that say what the model is.
func afterHead(nodes []*ast.Node) int {
	at := 0
	for i, n := range nodes {
		switch n.Name {
		case "name", "platform", "backend", "runtime":
			at = i + 1
		}
	}
	return at
}

// SLO reads the parameter slo_ms. Without it ok is false.
func SLO(c *tritonpb.ModelConfig) (slo time.Duration, ok bool, err error) {
	p, found := c.GetParameters()[SLOParameter]
	if !found {
		return 0, false, nil
	}
	ms, err := strconv.ParseFloat(p.GetStringValue(), 64)
	if err != nil || !(ms > 0) || ms > float64(math.MaxInt64/int64(time.Millisecond)) {
		return 0, false, fmt.Errorf("parameter %s: %q is not a number of milliseconds above 0", SLOParameter, p.GetStringValue())
	}
	return time.Duration(ms * float64(time.Millisecond)), true, nil
}

// ServedVersions are those of the versions that Triton loads by the config's
// version policy (the latest one unless it says otherwise), ascending. A policy of
// the latest 0 serves none.
func ServedVersions(c *tritonpb.ModelConfig, versions []int64) []int64 {
	sorted := slices.Clone(versions)
	slices.Sort(sorted)
	switch p := c.GetVersionPolicy(); {
	case p.GetAll() != nil:
		return sorted
	case p.GetSpecific() != nil:
		return slices.DeleteFunc(sorted, func(v int64) bool { return !slices.Contains(p.GetSpecific().GetVersions(), v) })
	case p.GetLatest() != nil:
		return sorted[max(len(sorted)-int(p.GetLatest().GetNumVersions()), 0):]
	default:
		return sorted[max(len(sorted)-1, 0):]
	}
}

// Batchable says whether requests of a model that a server has with this configuration
// may share a batch, and if not, why. It is a statement about the model; single requests may still have to go
// alone (shared memory, classification).
func Batchable(c *tritonpb.ModelConfig) (ok bool, reason string) {
	switch {
	case c.GetEnsembleScheduling() != nil || c.GetPlatform() == "ensemble":
		return false, "ensemble: its steps are executed, not the ensemble itself"
	case c.GetSequenceBatching() != nil:
		return false, "sequence batching: requests of a sequence keep to one instance and their order"
	case c.GetModelTransactionPolicy().GetDecoupled():
		return false, "decoupled: a request may have any number of responses"
	case c.GetMaxBatchSize() <= 0:
		return false, "max_batch_size is 0: its tensors have no batch dimension"
	case len(c.GetBatchInput()) > 0 || len(c.GetBatchOutput()) > 0:
		return false, "batch_input or batch_output: Triton derives tensors from the batch that it forms itself"
	case c.GetResponseCache().GetEnable():
		return false, "response cache: a batch is never found in it again"
	case ownQueue(c.GetDynamicBatching()):
		return false, "queue policy, priorities or preserve_ordering: Triton's own queue keeps them"
	}
	for _, in := range c.GetInput() {
		switch {
		case in.GetAllowRaggedBatch():
			return false, fmt.Sprintf("input %q is ragged: concatenation would change its meaning", in.GetName())
		case in.GetIsShapeTensor():
			return false, fmt.Sprintf("input %q is a shape tensor: it has no batch dimension", in.GetName())
		case in.GetIsNonLinearFormatIo():
			return false, fmt.Sprintf("input %q has a non-linear format: its rows are not adjacent", in.GetName())
		}
	}
	for _, out := range c.GetOutput() {
		switch {
		case out.GetIsShapeTensor():
			return false, fmt.Sprintf("output %q is a shape tensor: it has no batch dimension", out.GetName())
		case out.GetIsNonLinearFormatIo():
			return false, fmt.Sprintf("output %q has a non-linear format: its rows are not adjacent", out.GetName())
		}
	}
	return true, ""
}

// ownQueue says whether the server's queue has rules of its own (model configuration, "Dynamic Batcher"): limits, priorities, order. Of a model of
// Conch's own servers that is order alone: see takesOver.
func ownQueue(d *tritonpb.ModelDynamicBatching) bool {
	all := d.GetDefaultQueuePolicy()
	return d.GetPriorityLevels() > 0 || d.GetPreserveOrdering() || all.GetMaxQueueSize() > 0 || all.GetDefaultTimeoutMicroseconds() > 0
}

// QueuePolicy is the dynamic_batching of a model of which Conch's queue keeps the priorities, limits and timeouts; nil: it asks for none, or its servers
// keep them.
func (m *Model) QueuePolicy() *tritonpb.ModelDynamicBatching {
	if d := m.Written.GetDynamicBatching(); ownQueue(d) && !ownQueue(m.Config.GetDynamicBatching()) {
		return d
	}
	return nil
}

// asSyntaxError makes a *SyntaxError of any error of this file.
func asSyntaxError(err error) *SyntaxError {
	var syntax *SyntaxError
	if errors.As(err, &syntax) {
		return syntax
	}
	return &SyntaxError{Text: err.Error()}
}
