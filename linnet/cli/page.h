// What the pages about experiments share: numbers, paragraphs, and pictures in both themes.
//
//   const auto files = PictureFiles("docs/results", "figure1");   // written by
//   DrawPictures(figure, "docs/results", "figure1");              // this, and shown by
//   page += PictureTag("figure1", "Time against the length");     // this
#ifndef LINNET_CLI_PAGE_H_
#define LINNET_CLI_PAGE_H_

#include <string>
#include <vector>

#include "linnet/plot/plot.h"

namespace linnet::cli {

// Three significant digits, thousands apart: "1,234", "12.3", "0.0123".
std::string Digits(double value);
std::string Digits(long value);

// A paragraph in lines of 120 characters.
std::string Wrapped(const std::string& text);

// NAME.png and .svg, NAME-dark.png and .svg.
std::vector<std::string> PictureFiles(const std::string& folder, const std::string& name);
void DrawPictures(plot::Figure figure, const std::string& folder, const std::string& name);
// A series of this label, without points: what is known as an attention ("linear", "LSH-4") looks alike in
// every figure, whatever is beside it; other labels take the next color.
plot::Series MethodSeries(const std::string& label, plot::Style style);

// A <picture> that takes the one that suits the reader's theme.
std::string PictureTag(const std::string& name, const std::string& alt);

}  // namespace linnet::cli

#endif  // LINNET_CLI_PAGE_H_
