package cli

import "strings"

// appendCSVField appends one field in the form that csvReader reads back: NULL as nothing, the empty string as "".
func appendCSVField(dst []byte, text string, null bool) []byte {
	if null {
		return dst
	}
	if text != "" && !strings.ContainsAny(text, ",\"\r\n") && !strings.HasPrefix(text, string(byteOrderMark)) {
		return append(dst, text...)
	}
	dst = append(dst, '"')
	for i := range len(text) {
		if text[i] == '"' {
			dst = append(dst, '"')
		}
		dst = append(dst, text[i])
	}
	return append(dst, '"')
}
