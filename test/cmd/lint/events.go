package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/types"
	"strings"
	"unicode"

	"golang.org/x/tools/go/analysis"
)

// events reports log calls whose message is not an event, such as "lease renewed" or
// "store unreachable". An operator's alert compares whole messages, so ids, reasons and
// remedies are attributes. Each meaning has a single attribute name.
var events = &analysis.Analyzer{
	Name: "events",
	Doc:  "log messages are events",
	Run: func(pass *analysis.Pass) (any, error) {
		for _, f := range pass.Files {
			if !isSource(pass, f) {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					checkLogCall(pass, call)
				}
				return true
			})
		}
		return nil, nil
	},
}

// logCalls has the functions and methods of log/slog that take a message or attributes,
// with the number of their parameters before these.
var logCalls = map[string]struct {
	before     int
	hasMessage bool
}{
	"Debug": {0, true}, "Info": {0, true}, "Warn": {0, true}, "Error": {0, true},
	"DebugContext": {1, true}, "InfoContext": {1, true}, "WarnContext": {1, true}, "ErrorContext": {1, true},
	"Log": {2, true}, "LogAttrs": {2, true}, "With": {},
}

// checkLogCall checks the message and the attributes in a call of log/slog.
func checkLogCall(pass *analysis.Pass, call *ast.CallExpr) {
	name := slogName(pass, call)
	if _, isAttr := attrCalls[name]; isAttr && len(call.Args) > 0 {
		checkKey(pass, call.Args[0])
		return
	}
	kind, ok := logCalls[name]
	if !ok || len(call.Args) <= kind.before {
		return
	}
	rest := call.Args[kind.before:]
	if kind.hasMessage {
		if text, ok := constantText(pass, rest[0]); !ok {
			pass.Reportf(rest[0].Pos(), "the log message is no constant: put the value into an attribute")
		} else if fault := eventFault(text); fault != "" {
			pass.Reportf(rest[0].Pos(), "the log message %q %s: name an event, as in \"lease renewed\"", text, fault)
		}
		rest = rest[1:]
	}
	for i := 0; i < len(rest); i++ {
		if basic, ok := pass.TypesInfo.Types[rest[i]].Type.Underlying().(*types.Basic); ok && basic.Info()&types.IsString != 0 {
			checkKey(pass, rest[i])
			i++ // the value
		}
	}
}

// attrCalls has the functions of log/slog that make an attribute.
var attrCalls = map[string]bool{"Any": true, "Bool": true, "Duration": true, "Group": true, "Int": true, "Int64": true, "String": true, "Time": true, "Uint64": true}

// slogName returns the name of the called function if it belongs to log/slog.
func slogName(pass *analysis.Pass, call *ast.CallExpr) string {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	f, ok := pass.TypesInfo.Uses[selector.Sel].(*types.Func)
	if !ok || f.Pkg() == nil || f.Pkg().Path() != "log/slog" {
		return ""
	}
	return f.Name()
}

func constantText(pass *analysis.Pass, e ast.Expr) (string, bool) {
	value := pass.TypesInfo.Types[e].Value
	if value == nil || value.Kind() != constant.String {
		return "", false
	}
	return constant.StringVal(value), true
}

// finite has verbs in person, which make a message a sentence.
var finite = " is are was were has have had does do did can cannot could must will would may waits tries shows keeps reads stops "

// eventFault returns the fault of a log message, or "".
func eventFault(text string) string {
	switch {
	case strings.Contains(text, "; "), strings.Contains(text, ": "):
		return "has two parts"
	case strings.HasSuffix(text, "."), strings.HasSuffix(text, "!"):
		return "ends with a mark"
	}
	words := strings.Fields(text)
	if len(words) == 0 {
		return "is empty"
	}
	if first := []rune(words[0]); unicode.IsUpper(first[0]) && (len(first) == 1 || unicode.IsLower(first[1])) {
		return "begins with a capital"
	}
	for _, word := range words {
		if strings.Contains(finite, " "+word+" ") {
			return fmt.Sprintf("has the verb %q", word)
		}
	}
	return ""
}

// synonyms has attribute names with the name to use in their place.
var synonyms = map[string]string{"because": "reason", "cause": "reason", "why": "reason", "remote": "address", "tries": "attempt"}

// checkKey checks an attribute's name, if it is constant.
func checkKey(pass *analysis.Pass, e ast.Expr) {
	key, ok := constantText(pass, e)
	switch {
	case !ok:
	case synonyms[key] != "":
		pass.Reportf(e.Pos(), "the log attribute %q is elsewhere called %q", key, synonyms[key])
	case strings.ToLower(key) != key:
		pass.Reportf(e.Pos(), "the log attribute %q has capitals", key)
	}
}
