#include <tq/error.hpp>

#include <array>
#include <string_view>

namespace tq
{

bool Error::temporary() const noexcept
{
	static constexpr std::array<std::string_view, 11> kStates = {"TQ003", "TQ009", "55P03", "57014", "40001", "40P01",
																 "53100", "53200", "53300", "53400", "25006"};
	for (std::string_view state : kStates)
	{
		if (sqlstate_ == state)
			return true;
	}
	return false;
}

} // namespace tq
