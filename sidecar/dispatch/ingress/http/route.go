// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	nethttp "net/http"
	"strings"
)

// route is the parsed path of a request.
type route struct {
	model, version string
	repository     string
	infers         bool // it asks for inference
	// handle answers a request; nil: Handler.infer does.
	handle func(*Handler, nethttp.ResponseWriter, *nethttp.Request, route)
}

// requestPath is the path as it is in the request line: Triton neither decodes nor cleans it, and ignores the query.
func requestPath(r *nethttp.Request) string {
	target := r.RequestURI
	if target == "" { // made by a test or another handler
		target = r.URL.RequestURI()
	}
	if !strings.HasPrefix(target, "/") { // absolute form
		if i := strings.Index(target, "://"); i >= 0 {
			target = target[i+3:]
			if j := strings.IndexByte(target, '/'); j >= 0 {
				target = target[j:]
			}
		}
	}
	path, _, _ := strings.Cut(target, "?")
	return path
}

var fixedRoutes = map[string]func(*Handler, nethttp.ResponseWriter, *nethttp.Request, route){
	"/v2":                  serverMetadata,
	"/v2/health/live":      (*Handler).serverLive,
	"/v2/health/ready":     (*Handler).serverReady,
	"/v2/models/stats":     statistics,
	"/v2/logging":          (*Handler).settings,
	"/v2/trace/setting":    (*Handler).settings,
	"/v2/repository/index": (*Handler).repositoryIndex,
}

var modelRoutes = map[string]func(*Handler, nethttp.ResponseWriter, *nethttp.Request, route){
	"":                modelMetadata,
	"infer":           nil, // Handler.infer, which may answer later
	"generate":        (*Handler).passModel,
	"generate_stream": (*Handler).passModel,
	"ready":           (*Handler).modelReady,
	"config":          modelConfig,
	"stats":           statistics,
	"trace/setting":   (*Handler).settings,
}

// parseRoute follows Triton's patterns to the letter: no trailing slashes, no empty parts, versions of digits only.
func parseRoute(path string) (route, bool) {
	if handle, ok := fixedRoutes[path]; ok {
		return route{handle: handle}, true
	}
	if rest, ok := strings.CutPrefix(path, "/v2/models/"); ok {
		return parseModelRoute(rest)
	}
	if rest, ok := strings.CutPrefix(path, "/v2/repository/"); ok {
		return parseRepositoryRoute(rest)
	}
	for _, kind := range []string{"/v2/systemsharedmemory/", "/v2/cudasharedmemory/"} {
		if rest, ok := strings.CutPrefix(path, kind); ok {
			return parseSharedMemoryRoute(rest)
		}
	}
	return route{}, false
}

func parseModelRoute(rest string) (route, bool) {
	name, rest, more := strings.Cut(rest, "/")
	rt := route{model: name}
	if more {
		if tail, ok := strings.CutPrefix(rest, "versions/"); ok {
			rt.version, rest, more = strings.Cut(tail, "/")
			if !isVersion(rt.version) {
				return route{}, false
			}
			// Versions are numbers: 01 is 1.
			if rt.version = strings.TrimLeft(rt.version, "0"); rt.version == "" {
				rt.version = "0"
			}
		}
	}
	handle, ok := modelRoutes[rest]
	if !ok || name == "" || (more && rest == "") {
		return route{}, false
	}
	rt.handle = handle
	rt.infers = rest == "infer" || rest == "generate" || rest == "generate_stream"
	return rt, true
}

// Plain reports whether POSTs to a path are requests for inference whose handling is plain (package http1): the body is read before the answer begins, and the
// answer has a length if the client does not ask for a content encoding.
func Plain(path string) bool {
	rest, ok := strings.CutPrefix(path, "/v2/models/")
	if !ok || !strings.HasSuffix(rest, "/infer") {
		return false
	}
	rt, ok := parseModelRoute(rest)
	return ok && rt.infers
}

func isVersion(s string) bool {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return s != ""
}

// parseRepositoryRoute reads [R/]index and [R/]models/M/(load|unload).
func parseRepositoryRoute(rest string) (route, bool) {
	parts := strings.Split(rest, "/")
	var rt route
	switch n := len(parts); {
	case n == 2 && parts[1] == "index", n == 4 && parts[1] == "models":
		rt.repository, parts = parts[0], parts[1:]
		if rt.repository == "" {
			return route{}, false
		}
	case n == 3 && parts[0] == "models":
	default:
		return route{}, false
	}
	if len(parts) == 1 {
		rt.handle = (*Handler).repositoryIndex
		return rt, true
	}
	rt.model = parts[1]
	switch parts[2] {
	case "load":
		rt.handle = (*Handler).modelLoad
	case "unload":
		rt.handle = (*Handler).modelUnload
	}
	return rt, rt.handle != nil && rt.model != ""
}

func parseSharedMemoryRoute(rest string) (route, bool) {
	if tail, ok := strings.CutPrefix(rest, "region/"); ok {
		region, action, more := strings.Cut(tail, "/")
		if !more || region == "" {
			return route{}, false
		}
		rest = action
	}
	switch rest {
	case "status", "register", "unregister":
		return route{handle: (*Handler).settings}, true
	}
	return route{}, false
}
