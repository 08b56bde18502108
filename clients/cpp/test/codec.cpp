// The vectors of clients/vectors, and round trips.   usage: tq_test_codec VECTORS
#include <tq/codec.hpp>

#include <boost/json.hpp>

#include <fstream>
#include <iostream>
#include <sstream>

namespace json = boost::json;

namespace
{

int failures = 0;

void judge(bool held, const std::string &name)
{
	std::cout << (held ? "ok - " : "not ok - ") << name << "\n";
	failures += !held;
}

bool refused(const tq::Codec &codec, std::string_view context, std::string_view encoded)
{
	try
	{
		codec.decode(context, encoded);
		return false;
	}
	catch (const tq::CodecError &)
	{
		return true;
	}
}

std::string text(const json::value &value) { return json::value_to<std::string>(value); }

} // namespace

int main(int, char **arguments)
{
	std::ifstream file(arguments[1]);
	std::stringstream content;
	content << file.rdbuf();
	const json::value vectors = json::parse(content.str());
	std::map<std::string, std::string> keys;
	for (const auto &[id, key] : vectors.at("keys").as_object())
		keys[id] = tq::base64_decode(text(key));
	const tq::Codec codec(keys, "2026a"), signing(keys, "2026b", tq::Algorithm::kSign);
	std::string wrong;
	for (const json::value &one : vectors.at("accepted").as_array())
	{
		if (codec.decode(text(one.at("context")), json::serialize(one.at("encoded"))) != text(one.at("text")))
			wrong += " " + text(one.at("name"));
	}
	judge(wrong.empty() && !vectors.at("accepted").as_array().empty(), "codec: accepted vectors are decoded" + wrong);
	wrong.clear();
	for (const json::value &one : vectors.at("refused").as_array())
	{
		if (!refused(codec, text(one.at("context")), json::serialize(one.at("encoded"))))
			wrong += " " + text(one.at("name"));
	}
	judge(wrong.empty() && !vectors.at("refused").as_array().empty(), "codec: refused vectors are refused" + wrong);
	const std::string value = "{\"n\":1.10,\"text\":\"é\"}";
	for (const tq::Codec *one : {&codec, &signing})
	{
		const std::string encoded = one->encode("tq.v1:payload", value);
		judge(codec.decode("tq.v1:payload", encoded) == value && refused(codec, "tq.v1:result:1", encoded) &&
				  encoded != one->encode("tq.v1:payload", value + " "),
			  "codec: what it encodes is decoded in its context only");
	}
	judge(refused(codec, "tq.v1:payload", "{\"a\":1}") &&
			  codec.decode("tq.v1:payload", "{\"a\":1}", true) == "{\"a\":1}",
		  "codec: plain values are refused unless they are accepted");
	const std::string encoded = codec.encode(tq::Codec::result_context(7), "1.10");
	const auto parents = [&encoded](const std::string &id) {
		return "{\"" + id + "\":{\"state\":\"succeeded\",\"result\":" + encoded + "},\"8\":{\"state\":\"dead\"}}";
	};
	judge(codec.decode_parents(parents("7")) ==
			  "{\"7\":{\"state\":\"succeeded\",\"result\":1.10},\"8\":{\"state\":\"dead\"}}",
		  "codec: results of parents are decoded, and their numbers kept");
	bool raised = false;
	try
	{
		codec.decode_parents(parents("6"));
	}
	catch (const tq::CodecError &)
	{
		raised = true;
	}
	judge(raised, "codec: the result of another parent is refused");
	return failures != 0;
}
