// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/protocolbuffers/txtpbfmt/ast"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Strictness says whom Validate judges for.
type Strictness struct {
	// Newer lets fields pass with a warning that a newer Triton than the one that this
	// package knows may have.
	Newer bool
	// emulated lets models that minitriton emulates pass without the file that a real
	// backend needs.
	emulated bool
}

// Validate says what is wrong with the model directory name of a repository:
// what Triton would refuse (or hang on, or end on), with file and line, errors
// first. It judges as a Triton would that does not complete configurations by
// itself (--disable-auto-complete-config), which is how Conch starts it.
//
// What cannot be known without running a model is not judged: whether a backend is
// installed, what a model.py does, whether a graph can be executed, GPUs, memory,
// and files outside the repository.
func Validate(fsys fs.FS, name string, s Strictness) []Problem {
	_, problems := validate(fsys, name, s)
	return problems
}

// validate gives the configuration, too; nil where it cannot be read.
func validate(fsys fs.FS, name string, s Strictness) (*tritonpb.ModelConfig, []Problem) {
	file := path.Join(name, ConfigFile)
	text, err := fs.ReadFile(fsys, file)
	if err != nil {
		problem := Problem{Severity: SeverityError, File: file, Text: reason(err)}
		if info, stat := fs.Stat(fsys, file); stat == nil && info.IsDir() {
			problem.Text = "is a directory; a Triton that is asked to load the model ends"
		} else if errors.Is(err, fs.ErrNotExist) {
			problem.Text = "no configuration; Triton runs without auto-completion here: write one with backend, max_batch_size, input and output"
		}
		return nil, []Problem{problem}
	}
	v := &validator{model: name, files: fsys, Strictness: s}
	c := v.config(text)
	sortProblems(v.problems)
	return c, v.problems
}

func sortProblems(problems []Problem) {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return strings.Compare(string(a.Severity), string(b.Severity)) // "error" is before "warning"
	})
}

// reason is what went wrong with a file without its path, which a Problem has.
func reason(err error) string {
	var at *fs.PathError
	if errors.As(err, &at) {
		return "cannot be read: " + at.Err.Error()
	}
	return err.Error()
}

// ValidateAll validates every model directory of a repository, and its ensembles
// with the models that they call. A repository without a model directory is a warning.
func ValidateAll(fsys fs.FS, s Strictness) ([]Problem, error) {
	names, err := modelNames(fsys)
	if err != nil {
		return nil, err
	}
	found, all := map[string][]Problem{}, neighbours{}
	for _, name := range names {
		c, problems := validate(fsys, name, s)
		found[name] = problems
		all[name] = &neighbour{config: c, versions: versionsIn(fsys, name).numbers(), refused: refused(problems)}
		if c.GetEnsembleScheduling() != nil {
			if all[name].text, err = fs.ReadFile(fsys, path.Join(name, ConfigFile)); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	for name, problems := range all.check() {
		found[name] = append(found[name], problems...)
		sortProblems(found[name])
	}
	var list []Problem
	if len(names) == 0 {
		list = append(list, Problem{Severity: SeverityWarning, File: ".", Text: "no model directory; a model is a directory with config.pbtxt and one directory for each version, such as NAME/1/model.onnx"})
	}
	for _, name := range names {
		list = append(list, found[name]...)
	}
	return list, nil
}

func refused(problems []Problem) bool {
	return slices.ContainsFunc(problems, func(p Problem) bool { return p.Severity == SeverityError })
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

// validator collects what is wrong with one model.
type validator struct {
	Strictness
	model    string
	files    fs.FS
	nodes    []*ast.Node
	problems []Problem
}

func (v *validator) add(s Severity, line int, format string, args ...any) {
	v.problems = append(v.problems, Problem{Severity: s, File: path.Join(v.model, ConfigFile), Line: line, Text: fmt.Sprintf(format, args...)})
}

// refuse adds an error in the line of a field.
func (v *validator) refuse(line int, format string, args ...any) {
	v.add(SeverityError, line, format, args...)
}

func (v *validator) config(text []byte) *tritonpb.ModelConfig {
	c, err := ReadConfig(text)
	if err != nil {
		syntax := asSyntaxError(err)
		v.refuse(syntax.Line, "%s", strings.TrimSpace(syntax.Text))
		return nil
	}
	if v.nodes, err = parseTree(text); err != nil {
		v.refuse(0, "%s", err)
		return nil
	}
	if _, err := readConfig(text, false); err != nil {
		syntax := asSyntaxError(err)
		if v.Newer {
			v.add(SeverityWarning, syntax.Line, "%s; a Triton that does not know it refuses the model", syntax.Text)
		} else {
			v.refuse(syntax.Line, "%s", syntax.Text)
		}
	}
	if _, err := Manage(text); err != nil {
		v.refuse(0, "%s", err)
	}
	v.identity(c)
	v.tensors(c)
	v.derivedTensors(c)
	v.instances(c)
	v.batching(c)
	v.sequences(c)
	v.warmups(c)
	v.parameters(c)
	v.versions(c)
	return c
}

func (v *validator) identity(c *tritonpb.ModelConfig) {
	if c.GetName() != "" && c.GetName() != v.model {
		v.refuse(v.line("name"), "name is %q, and the directory is %q: Triton wants them equal (or no name)", c.GetName(), v.model)
	}
	isEnsemble := c.GetPlatform() == "ensemble"
	switch {
	case c.GetBackend() == "" && c.GetPlatform() == "" && v.guessedBackend() == "":
		v.refuse(0, "neither backend nor platform is set, and no file name tells; write backend: \"onnxruntime\", \"python\" or another")
	case c.GetBackend() == "" && c.GetPlatform() != "" && !isEnsemble && !slices.Contains(platforms(), c.GetPlatform()):
		v.refuse(v.line("platform"), "platform %q is none of Triton's; write backend: %q if that is the backend's name", c.GetPlatform(), c.GetPlatform())
	case isEnsemble && c.GetBackend() != "":
		v.refuse(v.line("backend"), "an ensemble has no backend; remove it, platform: \"ensemble\" says all")
	case isEnsemble && c.GetEnsembleScheduling() == nil:
		v.refuse(v.line("platform"), "platform is ensemble, and there is no ensemble_scheduling")
	case !isEnsemble && c.GetEnsembleScheduling() != nil:
		v.refuse(v.line("ensemble_scheduling"), "ensemble_scheduling needs platform: \"ensemble\"")
	}
	// A stub of the python backend is started by a shell, whose words its arguments are.
	if python := c.GetBackend() == "python" || c.GetBackend() == "" && v.guessedBackend() == "python"; python && strings.ContainsAny(v.model, " \t\n'\"`$&|;<>()\\") {
		v.problems = append(v.problems, Problem{Severity: SeverityError, File: v.model,
			Text: "the python backend passes the directory's name to a shell as it is, and never finishes loading the model: rename it, without blanks, quotes and other characters that a shell reads"})
	}
}

// platforms are those that stand for a backend.
func platforms() []string {
	return []string{"onnxruntime_onnx", "tensorrt_plan", "pytorch_libtorch", "tensorflow_savedmodel", "tensorflow_graphdef"}
}

// parameters are Conch's, and those that the python backend reads before it starts
// anything.
func (v *validator) parameters(c *tritonpb.ModelConfig) {
	if _, _, err := SLO(c); err != nil {
		v.add(SeverityWarning, v.parameterLine(SLOParameter), "%s; the default SLO holds", err)
	}
	if c.GetBackend() != "python" {
		return
	}
	const environment, cpuOnly, here = "EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS", "$$TRITON_MODEL_DIRECTORY/"
	if inside, ok := strings.CutPrefix(c.GetParameters()[environment].GetStringValue(), here); ok {
		if _, err := fs.Stat(v.files, path.Join(v.model, inside)); err != nil {
			v.refuse(v.parameterLine(environment), "parameter %s: %s: %s", environment, inside, reason(err))
		}
	}
	if p, ok := c.GetParameters()[cpuOnly]; ok && p.GetStringValue() != "yes" && p.GetStringValue() != "no" {
		v.refuse(v.parameterLine(cpuOnly), "parameter %s is %q: write yes or no", cpuOnly, p.GetStringValue())
	}
}
