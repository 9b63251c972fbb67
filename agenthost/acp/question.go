package acp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"ahprelay/agenthost"
	"ahprelay/internal/acp"
)

// questionOf translates an elicitation. The fields keep the agent's order.
func questionOf(p acp.CreateElicitationRequest, params json.RawMessage) agenthost.Question {
	q := agenthost.Question{Message: p.Message, URL: p.URL}
	properties := p.RequestedSchema.Properties
	order := keys(params, "requestedSchema", "properties")
	for _, id := range slices.Sorted(maps.Keys(properties)) {
		if !slices.Contains(order, id) {
			order = append(order, id)
		}
	}
	for _, id := range order {
		if property, ok := properties[id]; ok {
			q.Fields = append(q.Fields, field(id, property, slices.Contains(p.RequestedSchema.Required, id)))
		}
	}
	return q
}

// field translates a property of a form.
func field(id string, p acp.ElicitationPropertySchema, required bool) agenthost.Field {
	f := agenthost.Field{ID: id, Kind: agenthost.FieldText, Title: cmp.Or(p.Title, id), Message: p.Description, Required: required}
	_ = json.Unmarshal(p.Default, &f.Default) // without a default, Default is nil
	options, values := p.OneOf, p.Enum
	switch p.Type {
	case acp.ElicitationPropertySchemaNumber:
		f.Kind = agenthost.FieldNumber
	case acp.ElicitationPropertySchemaInteger:
		f.Kind = agenthost.FieldInteger
	case acp.ElicitationPropertySchemaBoolean:
		f.Kind = agenthost.FieldBoolean
	case acp.ElicitationPropertySchemaArray:
		f.Kind = agenthost.FieldMany
		options, values = p.Items.AnyOf, p.Items.Enum
	}
	f.Min, f.Max = number(p.Minimum), number(p.Maximum)
	for _, o := range options {
		f.Choices = append(f.Choices, agenthost.Choice{ID: o.Const, Label: cmp.Or(o.Title, o.Const), Description: o.Description})
	}
	for _, v := range values {
		f.Choices = append(f.Choices, agenthost.Choice{ID: v, Label: v})
	}
	if len(f.Choices) > 0 && f.Kind == agenthost.FieldText {
		f.Kind = agenthost.FieldOne
	}
	return f
}

func number(raw json.RawMessage) *float64 {
	n, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return nil
	}
	return &n
}

// keys returns the keys of the object at path, in the order of the text.
func keys(text json.RawMessage, path ...string) (list []string) {
	for _, key := range path {
		var object map[string]json.RawMessage
		if json.Unmarshal(text, &object) != nil {
			return nil
		}
		text = object[key]
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if _, err := dec.Token(); err != nil {
		return nil
	}
	for dec.More() {
		key, err := dec.Token()
		name, ok := key.(string)
		var value json.RawMessage
		if err != nil || !ok || dec.Decode(&value) != nil {
			return list
		}
		list = append(list, name)
	}
	return list
}
