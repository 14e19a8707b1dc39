// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/protocolbuffers/txtpbfmt/ast"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Validate says what is wrong with the model directory name of a repository:
// what Triton would refuse (or hang on), with file and line, errors first. It
// judges as a Triton would that does not complete configurations by itself
// (--disable-auto-complete-config), which is how Conch starts it.
func Validate(fsys fs.FS, name string) []Problem { return validate(fsys, name, false) }

// validate lets models that minitriton emulates pass without the file that a
// real backend needs, where emulated is set.
func validate(fsys fs.FS, name string, emulated bool) []Problem {
	text, err := fs.ReadFile(fsys, path.Join(name, ConfigFile))
	if err != nil {
		problem := Problem{Severity: SeverityError, File: path.Join(name, ConfigFile), Text: err.Error()}
		if errors.Is(err, fs.ErrNotExist) {
			problem.Text = "no configuration; Triton runs without auto-completion here: write one with backend, max_batch_size, input and output"
		}
		return []Problem{problem}
	}
	v := &validator{model: name, files: fsys, emulated: emulated}
	v.config(text)
	slices.SortStableFunc(v.problems, func(a, b Problem) int {
		return strings.Compare(string(a.Severity), string(b.Severity)) // "error" is before "warning"
	})
	return v.problems
}

// ValidateAll validates every model directory of a repository, and the steps of
// its ensembles.
func ValidateAll(fsys fs.FS) ([]Problem, error) {
	names, err := modelNames(fsys)
	if err != nil {
		return nil, err
	}
	var all []Problem
	for _, name := range names {
		problems := Validate(fsys, name)
		if text, err := fs.ReadFile(fsys, path.Join(name, ConfigFile)); err == nil {
			problems = append(problems, unknownSteps(name, text, names)...)
		}
		all = append(all, problems...)
	}
	return all, nil
}

// modelNames are the directories of a repository that hold models, sorted.
func modelNames(fsys fs.FS) ([]string, error) {
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, fmt.Errorf("read the model repository: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		// Stat, not the entry's own type: a link to a directory is a model too.
		if info, err := fs.Stat(fsys, e.Name()); err == nil && info.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

type validator struct {
	model    string
	files    fs.FS
	emulated bool
	nodes    []*ast.Node
	problems []Problem
}

func (v *validator) add(s Severity, line int, format string, args ...any) {
	v.problems = append(v.problems, Problem{Severity: s, File: path.Join(v.model, ConfigFile), Line: line, Text: fmt.Sprintf(format, args...)})
}

func (v *validator) config(text []byte) {
	c, err := ReadConfig(text)
	if err != nil {
		syntax := asSyntaxError(err)
		v.add(SeverityError, syntax.Line, "%s", syntax.Text)
		return
	}
	if v.nodes, err = parseTree(text); err != nil {
		v.add(SeverityError, 0, "%s", err)
		return
	}
	if _, err := readConfig(text, false); err != nil {
		syntax := asSyntaxError(err)
		v.add(SeverityWarning, syntax.Line, "%s; a Triton that does not know it refuses the model", syntax.Text)
	}
	if _, err := Manage(text); err != nil {
		v.add(SeverityError, 0, "%s", err)
	}
	v.identity(c)
	v.batching(c)
	v.tensors(c)
	v.instances(c)
	if _, _, err := SLO(c); err != nil {
		v.add(SeverityWarning, v.line("parameters"), "%s; the default SLO holds", err)
	}
	v.versions(c)
}

func (v *validator) identity(c *tritonpb.ModelConfig) {
	if c.GetName() != "" && c.GetName() != v.model {
		v.add(SeverityError, v.line("name"), "name is %q, and the directory is %q: Triton wants them equal (or no name)", c.GetName(), v.model)
	}
	if c.GetBackend() == "" && c.GetPlatform() == "" && !v.backendIsGuessed() {
		v.add(SeverityError, 0, "neither backend nor platform is set, and no file name tells; write backend: \"onnxruntime\", \"python\" or another")
	}
	isEnsemble := c.GetPlatform() == "ensemble"
	switch {
	case isEnsemble && c.GetEnsembleScheduling() == nil:
		v.add(SeverityError, v.line("platform"), "platform is ensemble, and there is no ensemble_scheduling")
	case !isEnsemble && c.GetEnsembleScheduling() != nil:
		v.add(SeverityError, v.line("ensemble_scheduling"), "ensemble_scheduling needs platform: \"ensemble\"")
	}
	for i, step := range c.GetEnsembleScheduling().GetStep() {
		if step.GetModelName() == "" {
			v.add(SeverityError, v.line("ensemble_scheduling"), "step %d of the ensemble names no model", i+1)
		}
	}
}

func (v *validator) batching(c *tritonpb.ModelConfig) {
	switch {
	case c.GetMaxBatchSize() < 0:
		v.add(SeverityError, v.line("max_batch_size"), "max_batch_size is %d: write 0 for no batch dimension, or the largest batch", c.GetMaxBatchSize())
	case v.line("max_batch_size") == 0:
		v.add(SeverityWarning, 0, "max_batch_size is missing and nobody completes it: 0 holds, tensors have no batch dimension and requests are never batched")
	}
	v.dynamicBatching(c.GetDynamicBatching(), c.GetMaxBatchSize())
}

// dynamicBatching looks for what Triton refuses of it, which a server would not
// see where Conch forms the batches.
func (v *validator) dynamicBatching(d *tritonpb.ModelDynamicBatching, maxBatch int32) {
	refuse := func(format string, args ...any) {
		v.add(SeverityError, v.line("dynamic_batching"), "dynamic_batching: "+format, args...)
	}
	for _, size := range d.GetPreferredBatchSize() {
		if size <= 0 || size > maxBatch {
			refuse("preferred_batch_size %d is not in 1..%d, the max_batch_size", size, maxBatch)
		}
	}
	levels := d.GetPriorityLevels()
	if levels == 0 {
		return // Triton looks at the rest with priorities alone
	}
	if level := d.GetDefaultPriorityLevel(); level == 0 || level > levels {
		refuse("default_priority_level %d is not in 1..%d, the priority_levels", level, levels)
	}
	for _, level := range slices.Sorted(maps.Keys(d.GetPriorityQueuePolicy())) {
		if level == 0 || level > levels {
			refuse("priority_queue_policy of level %d, which is not in 1..%d, the priority_levels", level, levels)
		}
	}
	if d.GetPreserveOrdering() && levels > 1 {
		refuse("preserve_ordering cannot be had with more than one priority level")
	}
}

func (v *validator) tensors(c *tritonpb.ModelConfig) {
	if len(c.GetInput()) == 0 {
		v.add(SeverityWarning, 0, "no input is described: no request can name one")
	}
	if len(c.GetOutput()) == 0 {
		v.add(SeverityWarning, 0, "no output is described")
	}
	batched := c.GetMaxBatchSize() > 0
	seen := map[string]bool{}
	for i, in := range c.GetInput() {
		v.tensor("input", i, in.GetName(), in.GetDataType(), in.GetDims(), in.GetReshape(), batched)
		if seen[in.GetName()] {
			v.add(SeverityWarning, v.tensorLine("input", i, "name"), "input %q is described twice", in.GetName())
		}
		seen[in.GetName()] = true
	}
	for i, out := range c.GetOutput() {
		v.tensor("output", i, out.GetName(), out.GetDataType(), out.GetDims(), out.GetReshape(), batched)
		if label := out.GetLabelFilename(); label != "" {
			if _, err := fs.Stat(v.files, path.Join(v.model, label)); err != nil {
				v.add(SeverityError, v.tensorLine("output", i, "label_filename"), "label file %q: %v", label, err)
			}
		}
	}
}

func (v *validator) tensor(kind string, i int, name string, datatype tritonpb.DataType, dims []int64, reshape *tritonpb.ModelTensorReshape, batched bool) {
	if name == "" {
		v.add(SeverityError, v.tensorLine(kind, i, "name"), "%s %d has no name", kind, i+1)
	}
	if datatype == tritonpb.DataType_TYPE_INVALID {
		v.add(SeverityError, v.tensorLine(kind, i, "data_type"), "%s %q has no data_type", kind, name)
	}
	if len(dims) == 0 {
		v.add(SeverityError, v.tensorLine(kind, i, "dims"), "%s %q has no dims; a scalar is dims: [ 1 ] with an empty reshape", kind, name)
	}
	for _, d := range dims {
		if d < 1 && d != -1 {
			v.add(SeverityError, v.tensorLine(kind, i, "dims"), "%s %q has dimension %d: write 1 or more, or -1 for a size that varies", kind, name, d)
			break
		}
	}
	if reshape == nil {
		return
	}
	line := v.tensorLine(kind, i, "reshape")
	if len(reshape.GetShape()) == 0 && !batched {
		v.add(SeverityError, line, "%s %q is reshaped to no dimension, which needs max_batch_size above 0", kind, name)
	}
	fixed := func(shape []int64) (product int64, free int) {
		product = 1
		for _, d := range shape {
			if d < 0 {
				free++
			} else {
				product *= d
			}
		}
		return product, free
	}
	have, haveFree := fixed(dims)
	want, wantFree := fixed(reshape.GetShape())
	if have != want || haveFree != wantFree {
		v.add(SeverityError, line, "%s %q has dims %v and cannot be reshaped to %v: the numbers of elements differ", kind, name, dims, reshape.GetShape())
	}
}

func (v *validator) instances(c *tritonpb.ModelConfig) {
	for _, g := range c.GetInstanceGroup() {
		if len(g.GetGpus()) > 0 && (g.GetKind() == tritonpb.ModelInstanceGroup_KIND_CPU || g.GetKind() == tritonpb.ModelInstanceGroup_KIND_MODEL) {
			v.add(SeverityError, v.line("instance_group"), "instance_group is %s and lists gpus", g.GetKind())
		}
		if slices.ContainsFunc(g.GetGpus(), func(n int32) bool { return n != 0 }) {
			v.add(SeverityError, v.line("instance_group"), "instance_group names gpus %v: a partition's process sees one GPU, number 0; leave gpus out", g.GetGpus())
		}
	}
}

// versions looks for the files that the served versions need. A version
// directory of the python backend without its file makes Triton's load hang for
// ever.
func (v *validator) versions(c *tritonpb.ModelConfig) {
	entries, err := fs.ReadDir(v.files, v.model)
	if err != nil {
		v.problems = append(v.problems, Problem{Severity: SeverityError, File: v.model, Text: err.Error()})
		return
	}
	var names []string
	for _, e := range entries {
		if info, err := fs.Stat(v.files, path.Join(v.model, e.Name())); err == nil && info.IsDir() {
			names = append(names, e.Name())
		}
	}
	served := ServedVersions(c, versionNumbers(names))
	if len(served) == 0 {
		what := "no version directory; make one named by a number, such as 1"
		if specific := c.GetVersionPolicy().GetSpecific(); specific != nil && len(versionNumbers(names)) > 0 {
			what = fmt.Sprintf("version_policy asks for %v, and there is no such directory", specific.GetVersions())
		}
		v.problems = append(v.problems, Problem{Severity: SeverityError, File: v.model, Line: 0, Text: what})
		return
	}
	file, required := modelFile(c)
	if !required || v.emulated && runsInMinitriton(c) {
		return
	}
	for _, version := range served {
		dir := path.Join(v.model, strconv.FormatInt(version, 10))
		if _, err := fs.Stat(v.files, path.Join(dir, file)); err == nil {
			continue
		}
		text := file + " is missing"
		if c.GetBackend() == "python" {
			text += "; Triton would never finish loading the model"
		}
		v.problems = append(v.problems, Problem{Severity: SeverityError, File: dir, Text: text})
	}
}

// runsInMinitriton reports that minitriton serves the model by its parameters
// alone.
func runsInMinitriton(c *tritonpb.ModelConfig) bool {
	for name := range c.GetParameters() {
		if name == "conch_builtin" || name == "conch_emulate_beta_us" {
			return true
		}
	}
	return false
}

// versionNumbers keeps the names that Triton takes for version directories.
func versionNumbers(names []string) []int64 {
	var versions []int64
	for _, name := range names {
		if name != "0" && strings.HasPrefix(name, "0") || strings.Trim(name, "0123456789") != "" {
			continue
		}
		if n, err := strconv.ParseInt(name, 10, 64); err == nil {
			versions = append(versions, n)
		}
	}
	slices.Sort(versions)
	return versions
}

// modelFile is the file or directory that a version of the model must hold, by
// the defaults of Triton's backends (model configuration, "Platform"). Backends
// that we do not know may need none.
func modelFile(c *tritonpb.ModelConfig) (name string, required bool) {
	defaults := defaultFiles()
	name, required = defaults[c.GetBackend()]
	if !required {
		name, required = defaults[c.GetPlatform()]
	}
	if required && c.GetDefaultModelFilename() != "" {
		name = c.GetDefaultModelFilename()
	}
	// An ahead-of-time runtime or per-device files: several names are possible.
	if len(c.GetCcModelFilenames()) > 0 || c.GetRuntime() != "" {
		required = false
	}
	return name, required
}

// defaultFiles are the names of model files by backend or platform.
func defaultFiles() map[string]string {
	return map[string]string{
		"python": "model.py", "onnxruntime": "model.onnx", "tensorrt": "model.plan", "pytorch": "model.pt", "openvino": "model.xml",
		"onnxruntime_onnx": "model.onnx", "tensorrt_plan": "model.plan", "pytorch_libtorch": "model.pt",
		"tensorflow_savedmodel": "model.savedmodel", "tensorflow_graphdef": "model.graphdef",
	}
}

// backendIsGuessed reports that a version holds a file by whose name Triton
// knows the backend.
func (v *validator) backendIsGuessed() bool {
	for _, name := range defaultFiles() {
		if found, err := fs.Glob(v.files, path.Join(v.model, "[0-9]*", name)); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

// unknownSteps are the steps of an ensemble whose models do not exist.
func unknownSteps(model string, text []byte, names []string) []Problem {
	c, err := ReadConfig(text)
	if err != nil {
		return nil // reported by Validate
	}
	v := &validator{model: model}
	if v.nodes, err = parseTree(text); err != nil {
		return nil // reported by Validate
	}
	for i, step := range c.GetEnsembleScheduling().GetStep() {
		if name := step.GetModelName(); name != "" && !slices.Contains(names, name) {
			v.add(SeverityError, v.line("ensemble_scheduling"), "step %d of the ensemble calls model %q, which the repository does not have", i+1, name)
		}
	}
	return v.problems
}

// line is the line of a field of the configuration, 0 where it is absent.
func (v *validator) line(field string) int {
	for _, n := range v.nodes {
		if n.Name == field {
			return nodeLine(n)
		}
	}
	return 0
}

// tensorLine is the line of a field of the i-th input or output; that of the
// tensor where the field is absent.
func (v *validator) tensorLine(kind string, i int, field string) int {
	var tensors [][]*ast.Node
	var lines []int
	for _, n := range v.nodes {
		switch {
		case n.Name != kind:
		case n.ChildrenAsList:
			for _, element := range n.Children {
				if !element.IsCommentOnly() || len(element.Children) > 0 {
					tensors, lines = append(tensors, element.Children), append(lines, nodeLine(n))
				}
			}
		default:
			tensors, lines = append(tensors, n.Children), append(lines, nodeLine(n))
		}
	}
	if i >= len(tensors) {
		return 0
	}
	for _, n := range tensors[i] {
		if n.Name == field {
			return nodeLine(n)
		}
	}
	return lines[i]
}

// nodeLine is the line of the node itself: its start counts the comments and
// blank lines above it.
func nodeLine(n *ast.Node) int { return int(n.Start.Line) + len(n.PreComments) }
