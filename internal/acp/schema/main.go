// Command schema writes the Go types of the Agent Client Protocol from schema.json in
// its directory. That file is schema/v1/schema.unstable.json of the npm package
// @agentclientprotocol/sdk, which includes the stable protocol, without descriptions:
//
//	jq 'walk(if type == "object" and (.description | type) == "string" then del(.description) else . end)'
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"go/format"
	"maps"
	"os"
	"slices"
	"strings"
)

//go:embed schema.json
var schema []byte

func main() {
	code, err := generate(schema)
	if err == nil {
		err = os.WriteFile("types.go", code, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "schema:", err)
		os.Exit(1)
	}
}

// A node is a part of a schema.
type node struct {
	Ref        string          `json:"$ref"`
	Type       any             `json:"type"` // a name or a list of names
	Const      any             `json:"const"`
	Properties map[string]node `json:"properties"`
	Required   []string        `json:"required"`
	Additional json.RawMessage `json:"additionalProperties"`
	Items      *node           `json:"items"`
	AllOf      []node          `json:"allOf"`
	AnyOf      []node          `json:"anyOf"`
	OneOf      []node          `json:"oneOf"`
}

// roots are the types from which all types in use are reached.
var roots = strings.Fields(`
	InitializeRequest InitializeResponse AuthenticateRequest NewSessionRequest NewSessionResponse LoadSessionRequest LoadSessionResponse
	ResumeSessionRequest ForkSessionRequest ListSessionsRequest ListSessionsResponse DeleteSessionRequest SetSessionModeRequest
	SetSessionConfigOptionRequest SetSessionConfigOptionResponse PromptRequest PromptResponse CancelNotification CancelRequestNotification
	SessionNotification ReadTextFileRequest ReadTextFileResponse WriteTextFileRequest RequestPermissionRequest RequestPermissionResponse
	CreateTerminalRequest CreateTerminalResponse TerminalOutputRequest TerminalOutputResponse WaitForTerminalExitResponse
	CreateElicitationRequest CreateElicitationResponse ContentChunk ToolCallUpdate Plan AvailableCommandsUpdate CurrentModeUpdate
	ConfigOptionUpdate SessionInfoUpdate UsageUpdate Notice CompactionUpdate`)

// raw are the types that stay JSON text: values of any type, and unions in which a name
// has different types in different variants.
var raw = strings.Fields("SessionUpdate RequestId ElicitationContentValue ExtRequest ExtResponse ExtNotification")

// unused are the members that neither end reads or writes.
var unused = strings.Fields(`
	AgentCapabilities.auth AgentCapabilities.mcpCapabilities AgentCapabilities.providers ClientCapabilities.plan ClientCapabilities.subagents
	CompactionUpdate.error CompactionUpdate.summary ContentBlock.annotations ContentBlock.description ContentBlock.size
	CreateElicitationRequest.requestId CreateElicitationRequest.toolCallId ElicitationPropertySchema.format ElicitationPropertySchema.maxItems
	ElicitationPropertySchema.maxLength ElicitationPropertySchema.minItems ElicitationPropertySchema.minLength
	ElicitationPropertySchema.pattern ElicitationSchema.description ElicitationSchema.title ForkSessionRequest.systemPrompt
	ListSessionsRequest.archived LoadSessionRequest.systemPrompt MultiSelectItems.type NewSessionRequest.systemPrompt
	ReadTextFileRequest.limit ReadTextFileRequest.line ResumeSessionRequest.systemPrompt SessionCapabilities.archive
	SessionCapabilities.status SessionCapabilities.systemPrompt SessionCapabilities.title SessionConfigSelectGroup.group
	SessionInfo.additionalDirectories SessionInfo.archived SessionInfoUpdate.updatedAt TerminalExitStatus.signal
	Usage.cachedWriteTokens WaitForTerminalExitResponse.signal`)

// withMeta are the types whose member _meta an end reads or writes.
var withMeta = strings.Fields("AuthMethod ClientCapabilities InitializeResponse PromptResponse ToolCallUpdate UsageUpdate")

// A generator writes types.
type generator struct {
	defs    map[string]node
	types   bytes.Buffer
	rest    bytes.Buffer // constants and methods
	pending []string
	seen    map[string]bool
}

// generate returns the Go code for a schema.
func generate(schema []byte) ([]byte, error) {
	var root struct {
		Defs map[string]node `json:"$defs"`
	}
	if err := json.Unmarshal(schema, &root); err != nil {
		return nil, err
	}
	g := &generator{defs: root.Defs, seen: map[string]bool{}}
	for _, member := range unused {
		name, key, _ := strings.Cut(member, ".")
		if !g.remove(g.defs[name], key) {
			return nil, fmt.Errorf("the schema has no %s", member)
		}
	}
	g.types.WriteString("// Code generated from schema/schema.json by go generate; DO NOT EDIT.\n\npackage acp\n\nimport \"encoding/json\"\n\n// Types with the protocol's names.\ntype (\n")
	for _, name := range slices.Sorted(slices.Values(roots)) {
		if _, ok := g.defs[name]; !ok {
			return nil, fmt.Errorf("the schema has no %s", name)
		}
		g.need(name)
	}
	for len(g.pending) > 0 {
		name := g.pending[0]
		g.pending = g.pending[1:]
		g.define(name, g.defs[name])
	}
	g.constants("Update", g.defs["SessionUpdate"], "sessionUpdate")
	g.types.WriteString(")\n")
	return format.Source(append(g.types.Bytes(), g.rest.Bytes()...))
}

// remove deletes a member from an object, or from all variants of a union.
func (g *generator) remove(n node, key string) bool {
	_, found := n.Properties[key]
	delete(n.Properties, key)
	for _, part := range slices.Concat(n.AllOf, n.OneOf, n.AnyOf) {
		found = g.remove(part, key) || found
	}
	return n.Ref != "" && g.remove(g.defs[refName(n.Ref)], key) || found
}

func (g *generator) need(name string) {
	if !g.seen[name] {
		g.seen[name] = true
		g.pending = append(g.pending, name)
	}
}

// define writes a named type, or only its constants if it is a text.
func (g *generator) define(name string, n node) {
	if g.isText(n) {
		g.values(name, n, func(variant node) any { return variant.Const })
		return
	}
	if slices.Contains(raw, name) {
		return
	}
	if items := g.listItem(n); items != nil {
		return // the item has a name
	}
	s := g.members(n)
	if len(s.types) == 0 && !s.object {
		return // a number
	}
	fmt.Fprintf(&g.types, "\n%s struct {\n", name)
	for _, key := range slices.Sorted(maps.Keys(s.types)) {
		if key == "_meta" {
			continue
		}
		tag := key
		if !s.required[key] {
			tag += ",omitzero"
		}
		fmt.Fprintf(&g.types, "%s %s `json:%q`\n", goName(key), s.types[key], tag)
	}
	if slices.Contains(withMeta, name) {
		g.types.WriteString("Meta json.RawMessage `json:\"_meta,omitzero\"`\n")
	}
	g.types.WriteString("}\n")
	for _, key := range slices.Sorted(maps.Keys(s.variants)) {
		g.constants(name, n, key)
		g.marshaller(name, n, key)
	}
}

// marshaller writes MarshalJSON for a union: it keeps the texts that a variant requires,
// even if they are empty.
func (g *generator) marshaller(name string, n node, key string) {
	required := map[string][]string{}
	for _, variant := range append(n.OneOf, n.AnyOf...) {
		value, ok := variant.Properties[key].Const.(string)
		if !ok {
			continue
		}
		s := g.members(variant)
		for _, member := range slices.Sorted(maps.Keys(s.required)) {
			if member != key && s.types[member] == "string" {
				required[value] = append(required[value], member)
			}
		}
	}
	if len(required) == 0 {
		return
	}
	fmt.Fprintf(&g.rest, "\n// MarshalJSON implements [json.Marshaler].\nfunc (v %s) MarshalJSON() ([]byte, error) {\ntype plain %s\nvar required []string\nswitch v.%s {\n", name, name, goName(key))
	for _, value := range slices.Sorted(maps.Keys(required)) {
		fmt.Fprintf(&g.rest, "case %q:\nrequired = %#v\n", value, required[value])
	}
	g.rest.WriteString("}\nreturn withRequired(plain(v), required)\n}\n")
}

// constants writes the values of the member that selects a union's variant.
func (g *generator) constants(name string, n node, key string) {
	g.values(name, n, func(variant node) any { return variant.Properties[key].Const })
}

// values writes a constant for each variant that value knows.
func (g *generator) values(name string, n node, value func(variant node) any) {
	var lines strings.Builder
	for _, variant := range append(n.OneOf, n.AnyOf...) {
		if value, ok := value(variant).(string); ok {
			fmt.Fprintf(&lines, "%s%s = %q\n", name, goName(value), value)
		}
	}
	if lines.Len() > 0 {
		fmt.Fprintf(&g.rest, "\nconst (\n%s)\n", &lines)
	}
}

// A shape is the members of an object. A union has the members of all variants.
type shape struct {
	object   bool
	types    map[string]string
	required map[string]bool
	variants map[string]bool // members whose value selects the variant
}

func (g *generator) members(n node) shape {
	s := shape{n.Type == "object", map[string]string{}, map[string]bool{}, map[string]bool{}}
	g.collect(n, &s, true)
	return s
}

func (g *generator) collect(n node, s *shape, required bool) {
	if n.Ref != "" {
		g.collect(g.defs[refName(n.Ref)], s, required)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(n.Properties)) {
		member := n.Properties[key]
		typed := g.goType(member)
		if _, ok := member.Const.(string); ok {
			typed = "string"
			s.variants[key] = true
		}
		if before, ok := s.types[key]; ok && before != typed {
			typed = "json.RawMessage"
		}
		s.types[key] = typed
		if required && slices.Contains(n.Required, key) {
			s.required[key] = true
		}
	}
	for _, part := range n.AllOf {
		g.collect(part, s, required)
	}
	for _, variant := range append(n.OneOf, n.AnyOf...) {
		g.collect(variant, s, false)
	}
}

// goType returns the Go type of a member. Each form of schema has its branch.
func (g *generator) goType(n node) string {
	if variants := append(slices.Clone(n.AnyOf), n.OneOf...); len(variants) > 0 && n.Ref == "" {
		present := slices.DeleteFunc(variants, func(v node) bool { return v.Type == "null" })
		if len(present) == 1 {
			return g.optional(g.goType(present[0]))
		}
	}
	if len(n.AllOf) == 1 && n.Properties == nil {
		return g.goType(n.AllOf[0])
	}
	if n.Ref != "" {
		return g.refType(refName(n.Ref))
	}
	switch typeName(n.Type) {
	case "string":
		return "string"
	case "boolean":
		return "bool"
	case "integer":
		return nullable(n.Type) + "int64"
	case "number":
		return nullable(n.Type) + "float64"
	case "array":
		if n.Items != nil {
			return "[]" + g.goType(*n.Items)
		}
	case "object":
		var item node
		if json.Unmarshal(n.Additional, &item) == nil && (item.Type != nil || item.Ref != "") {
			return "map[string]" + g.goType(item)
		}
	}
	return "json.RawMessage"
}

func (g *generator) refType(name string) string {
	n := g.defs[name]
	switch {
	case slices.Contains(raw, name):
		return "json.RawMessage"
	case g.isText(n):
		g.need(name)
		return "string"
	}
	if item := g.listItem(n); item != nil {
		g.defs[name+"Item"] = *item
		g.need(name + "Item")
		return "[]" + name + "Item"
	}
	s := g.members(n)
	delete(s.types, "_meta")
	switch {
	case len(s.types) > 0:
		g.need(name)
		return name
	case s.object:
		return capability
	}
	return g.goType(n)
}

// capability is the type of an object without members, which package acp defines.
const capability = "Capability"

// optional returns a pointer for objects, so that their presence is visible.
func (g *generator) optional(typed string) string {
	if _, ok := g.defs[typed]; ok || typed == capability {
		return "*" + typed
	}
	return typed
}

// isText reports whether a type is a text, with known values or without.
func (g *generator) isText(n node) bool {
	if typeName(n.Type) == "string" {
		return true
	}
	variants := append(slices.Clone(n.OneOf), n.AnyOf...)
	return len(variants) > 0 && !slices.ContainsFunc(variants, func(v node) bool { return typeName(v.Type) != "string" })
}

// listItem returns the merged items of a union of lists, or nil.
func (g *generator) listItem(n node) *node {
	item := node{Type: "object"}
	for _, variant := range n.AnyOf {
		if typeName(variant.Type) != "array" {
			return nil
		}
		item.AnyOf = append(item.AnyOf, *variant.Items)
	}
	if len(item.AnyOf) == 0 {
		return nil
	}
	return &item
}

// typeName returns the name of a type that may also be null.
func typeName(t any) string {
	switch t := t.(type) {
	case string:
		return t
	case []any:
		for _, name := range t {
			if name != "null" {
				return name.(string)
			}
		}
	}
	return ""
}

// nullable returns the pointer of a number that may be null: zero is a value.
func nullable(t any) string {
	if list, ok := t.([]any); ok && slices.Contains(list, any("null")) {
		return "*"
	}
	return ""
}

func refName(ref string) string { return ref[strings.LastIndex(ref, "/")+1:] }

// goName returns an exported name: toolCallId is ToolCallID, agent_message_chunk is
// AgentMessageChunk.
func goName(name string) string {
	var out strings.Builder
	for _, word := range strings.FieldsFunc(name, func(r rune) bool { return r == '_' || r == '-' || r == '$' || r == '.' || r == '/' }) {
		out.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	text := out.String()
	for _, fix := range [][2]string{{"Id", "ID"}, {"Uri", "URI"}, {"Url", "URL"}, {"Http", "HTTP"}} {
		if strings.HasSuffix(text, fix[0]) {
			text = strings.TrimSuffix(text, fix[0]) + fix[1]
		}
	}
	return text
}
